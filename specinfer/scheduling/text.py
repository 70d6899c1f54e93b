"""Turn generated tokens into text, and find stop strings.

Incomplete characters and possible beginnings of stop strings are delayed.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from specinfer.scheduling.request import GenerationRequest
from specinfer.text.detokenizer import Detokenizer
from specinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str
    used: int
    """Number of pushed tokens, up to the end of a stop string."""
    stopped: bool


class TextStream:
    """The growing text of a request, without any stop string.

    A stop string may be a special token: it ends the text although special tokens are not part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str],
        prompt: Sequence[int] | None = None,
        ends: Set[int] = frozenset(),
    ) -> None:
        """Start after the tokens of a prompt; None: the prompt is unknown.

        `ends` are token ids that end a request; they are never part of the text.
        """
        self._ends = ends
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._stops = tuple(stop_strings)
        found = {tokenizer.special_token(stop): stop for stop in self._stops}
        self._stop_tokens = {token: stop for token, stop in found.items() if token is not None}
        self._longest = max(map(len, self._stops), default=0)
        self._pending = ""
        """Delayed text: a possible beginning of a stop string."""
        self._over = False
        """True once a stop string has ended the text."""
        self.stop_string = ""
        """The stop string that has ended the text in `push`; empty until then."""

    def skip(self, token_ids: Sequence[int]) -> bool:
        """Read tokens without returning text; return whether a stop string occurred."""
        self._pending += self._detokenizer.push(self._readable(token_ids))
        self._over = (
            self._over or self._find_stop(0) is not None or not self._stop_tokens.keys().isdisjoint(token_ids)
        )
        self._take(len(self._pending) - self._possible_stop())
        return self._over

    def push(self, token_ids: Sequence[int], last: bool) -> TextPiece:
        """Add tokens; return new text, with `last` also all delayed text."""
        if self._over:
            return TextPiece("", 0, True)
        if not self._stops:
            text = self._detokenizer.push(self._readable(token_ids))
            return TextPiece(text + (self._detokenizer.flush() if last else ""), len(token_ids), False)
        pieces = []
        for index, token in enumerate(token_ids):
            pieces.append(self._make_room())
            if token in self._stop_tokens:
                self._over = True
                rest = self._detokenizer.flush()
                end = self._add(rest)
                self.stop_string = self.stop_string or self._stop_tokens[token]
                return TextPiece(
                    "".join(pieces) + self._take(len(self._pending) if end is None else end), index + 1, True
                )
            if (end := self._add(self._detokenizer.push(self._readable([token])))) is not None:
                self._over = True
                return TextPiece("".join(pieces) + self._take(end), index + 1, True)
        if last and (end := self._add(self._detokenizer.flush())) is not None:
            self._over = True
            return TextPiece("".join(pieces) + self._take(end), len(token_ids), True)
        rest = self._take(len(self._pending) - (0 if last else self._possible_stop()))
        return TextPiece("".join(pieces) + rest, len(token_ids), False)

    def _readable(self, token_ids: Sequence[int]) -> Sequence[int]:
        return [token for token in token_ids if token not in self._ends] if self._ends else token_ids

    def _add(self, text: str) -> int | None:
        """Extend the delayed text; return a stop string's position, if found."""
        searched = max(0, len(self._pending) - self._longest + 1)
        self._pending += text
        return self._find_stop(searched)

    def _find_stop(self, start: int) -> int | None:
        starts = [(at, stop) for stop in self._stops if (at := self._pending.find(stop, start)) >= 0]
        first, self.stop_string = min(starts, default=(None, ""))
        return first

    def _make_room(self) -> str:
        """Return the start of a long delayed text, free of stop strings."""
        past = len(self._pending) - self._longest
        return self._take(past) if past > self._longest + 256 else ""

    def _possible_stop(self) -> int:
        """Return the length of a stop string's beginning at the text's end."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._pending)), longest, -1):
                if self._pending.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _take(self, end: int) -> str:
        text, self._pending = self._pending[:end], self._pending[end:]
        return text


class StopStrings:
    """Searches the texts of requests for stop strings."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[str, TextStream] = {}

    def begin(self, request: GenerationRequest, generated: Sequence[int]) -> bool:
        """Start a search; return whether the generated tokens end the request."""
        if not request.stop_strings:
            return False
        self._texts[request.request_id] = text = TextStream(
            self._tokenizer, request.stop_strings, request.prompt, request.stop_token_ids
        )
        return text.skip(generated)

    def find(self, request_id: str, tokens: Sequence[int], last: bool) -> int | None:
        """Count new tokens up to a stop string's end; None without one."""
        text = self._texts.get(request_id)
        piece = text.push(tokens, last) if text is not None else None
        return piece.used if piece is not None and piece.stopped else None

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)
