"""What speculators have to read before they draft again: what came since they were last asked. Pure.

    catching up = seconds per token * tokens of the contexts since speculators were last asked

The whole batch waits while a speculator reads, so a probe costs this besides its drafts. Not to count it made
trees at batch 8 to 16 a tenth slower than plain decoding (docs/findings.md#reading).
"""

from collections.abc import Mapping

from specinfer.planning.recent import Recent

_PART = 0.2
"""Of what a token of a pass takes the target: what reading one is thought to take until it was measured."""


class Reading:
    """Knows the contexts' lengths, and learns how fast services read."""

    def __init__(self, token_s: float) -> None:
        """`token_s`: what the target takes for one of several tokens of a pass."""
        self._first_s = _PART * token_s
        self._seconds: dict[frozenset[int], Recent] = {}
        """By service, for one token at the usual pace."""
        self._contexts: Mapping[str, int] = {}
        self._asked: Mapping[str, int] = {}

    def follow(self, contexts: Mapping[str, int]) -> None:
        """From now on these are the requests that want drafts, with the tokens of their contexts."""
        self._contexts = contexts

    def asked(self) -> None:
        """Speculators are asked in this step: afterwards they have read all there is."""
        self._asked = self._contexts

    def observe(self, service: frozenset[int], tokens: int, seconds: float) -> None:
        """A service read so many tokens in so many seconds, at the usual pace."""
        self._seconds.setdefault(service, Recent()).add(seconds / tokens)

    def seconds_to_catch_up(self, service: frozenset[int]) -> float:
        """For all that came since speculators were last asked."""
        missed = sum([tokens - self._asked.get(name, 0) for name, tokens in self._contexts.items()])
        seconds = self._seconds.get(service)
        return missed * (seconds.value if seconds else self._first_s)
