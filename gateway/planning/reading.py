"""What reading contexts costs speculators: prompts that arrive, and what they missed while not asked. Pure.

    reading, per step = seconds per token * prompt tokens that arrive per step
    catching up       = seconds per token * tokens of the contexts since they were last asked

The whole batch waits while a speculator reads. With answers of 64 tokens at batch 16 a prompt arrives every
fourth step; not to count that made trees at batch 8 to 16 a tenth slower than plain decoding
(docs/findings.md#reading).
"""

from collections.abc import Mapping

from gateway.planning.average import Average

_MEMORY = 100.0
"""Steps after which an arrived prompt counts 1/e: a batch of 16 turns over in fewer."""


class Reading:
    """Knows the contexts' lengths, and learns how fast services read."""

    def __init__(self) -> None:
        self._seconds: dict[frozenset[int], Average] = {}
        """By service, for one token at the usual pace."""
        self._arriving = 0.0
        """Prompt tokens per step."""
        self._contexts: Mapping[str, int] = {}
        self._asked: Mapping[str, int] = {}

    def follow(self, contexts: Mapping[str, int]) -> None:
        """From now on these are the requests that want drafts, with the tokens of their contexts."""
        arrived = sum([tokens for name, tokens in contexts.items() if name not in self._contexts])
        self._arriving += (arrived - self._arriving) / _MEMORY
        self._contexts = contexts

    def asked(self) -> None:
        """Speculators are asked in this step: afterwards they have read all there is."""
        self._asked = self._contexts

    def observe(self, service: frozenset[int], tokens: int, seconds: float) -> None:
        """A service read so many tokens in so many seconds, at the usual pace."""
        self._seconds.setdefault(service, Average()).add(seconds / tokens)

    def seconds_per_step(self, service: frozenset[int]) -> float:
        """For prompts, on average; 0 if the service was never seen reading."""
        return self._of_token(service) * self._arriving

    def seconds_to_catch_up(self, service: frozenset[int]) -> float:
        """For all that came since speculators were last asked."""
        missed = sum([tokens - self._asked.get(name, 0) for name, tokens in self._contexts.items()])
        return self._of_token(service) * missed

    def _of_token(self, service: frozenset[int]) -> float:
        seconds = self._seconds.get(service)
        return seconds.value if seconds else 0.0
