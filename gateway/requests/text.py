"""Tokens to text, one request at a time: incomplete characters and possible stop strings are held back."""

from collections.abc import Sequence
from dataclasses import dataclass

from specinfer.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What a push completed."""

    text: str
    used: int
    """How many of the pushed tokens count; fewer than pushed only if a stop string ended the text."""
    stopped: bool


class TextStream:
    """The text of one request as it grows. The text never contains a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = tuple(stop_strings)
        self._held = ""

    def push(self, token_ids: Sequence[int], last: bool) -> TextPiece:
        """Adds tokens; `last` gives out everything held back."""
        if not self._stops:
            text = self._detokenizer.push(token_ids)
            return TextPiece(text + (self._detokenizer.flush() if last else ""), len(token_ids), False)
        for index, token in enumerate(token_ids):
            self._held += self._detokenizer.push([token])
            if (end := self._find_stop()) is not None:
                return TextPiece(self._take(end), index + 1, True)
        if last:
            self._held += self._detokenizer.flush()
            if (end := self._find_stop()) is not None:
                return TextPiece(self._take(end), len(token_ids), True)
            return TextPiece(self._take(len(self._held)), len(token_ids), False)
        return TextPiece(self._take(len(self._held) - self._possible_stop()), len(token_ids), False)

    def _find_stop(self) -> int | None:
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        return min(found, default=None)

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that could begin a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _take(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text
