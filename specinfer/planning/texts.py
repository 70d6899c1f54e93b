"""Measure each request's predictability and its unread context. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

_PRIOR = 12.0
"""Weight of the assumption that a request is average, in accepted tokens."""
_HALF = 40.0
"""Trees after which the weight of an observed tree is halved."""
_ANSWER = 128.0
"""Assumed tokens of an answer until the first request ends."""
_LATEST = 16
"""Number of latest requests over which lengths are averaged."""


@dataclass(slots=True)
class _Text:
    """Accepted tokens of one request, and those expected of an average request."""

    prompt: int
    accepted: float = 0.0
    expected: float = 0.0


class RequestTexts:
    """Follows the requests that want drafts."""

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}
        self._contexts: Mapping[str, int] = {}
        """Context tokens by request id."""
        self._read: Mapping[str, int] = {}
        """Context tokens by request id when speculators last drafted."""
        self._prompt, self._answer = 0.0, _ANSWER
        """Mean tokens of prompts and answers."""

    def __len__(self) -> int:
        return len(self._texts)

    def follow(self, contexts: Mapping[str, int]) -> None:
        """Set the context lengths of the requests that want drafts."""
        texts = self._texts
        if texts.keys() != contexts.keys():
            for request_id in texts.keys() - contexts.keys():
                length = self._contexts.get(request_id, 0) - texts[request_id].prompt
                self._answer += (max(length, 1) - self._answer) / _LATEST
            for request_id in contexts.keys() - texts.keys():
                self._prompt += (contexts[request_id] - self._prompt) / (_LATEST if self._prompt else 1)
            self._texts = {
                request_id: texts.get(request_id) or _Text(prompt) for request_id, prompt in contexts.items()
            }
        self._contexts = contexts

    def ratio(self, request_id: str) -> float:
        """Return (accepted tokens / accepted tokens of an average request)."""
        text = self._texts.get(request_id)
        return (text.accepted + _PRIOR) / (text.expected + _PRIOR) if text else 1.0

    @property
    def ratios(self) -> float:
        return sum([self.ratio(request_id) for request_id in self._texts])

    def add(self, request_id: str, accepted: int, expected: float) -> None:
        """Count a tree's accepted tokens; `expected` of an average request."""
        text = self._texts.get(request_id)
        if text is not None:
            fade = 0.5 ** (1 / _HALF)
            text.accepted, text.expected = fade * text.accepted + accepted, fade * text.expected + expected

    def note_drafts(self) -> None:
        """Record that speculators draft now, and so read all contexts."""
        self._read = self._contexts

    @property
    def unread(self) -> int:
        """Context tokens added since speculators last drafted."""
        return sum([tokens - self._read.get(request_id, 0) for request_id, tokens in self._contexts.items()])

    @property
    def read_per_token(self) -> float:
        """Mean prompt tokens divided by mean answer tokens."""
        return self._prompt / self._answer
