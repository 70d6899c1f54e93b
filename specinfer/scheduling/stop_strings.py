"""Searches the text of a lane's requests for their stop strings, token by token."""

from collections.abc import Sequence

from specinfer.scheduling.request import GenerationRequest
from specinfer.scheduling.text import TextStream
from specinfer.tokenizer import Tokenizer


class StopStrings:
    """The texts of requests that have stop strings, as far as they have been searched."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[str, TextStream] = {}

    def begin(self, request: GenerationRequest, generated: Sequence[int]) -> bool:
        """From now on a request is searched; says whether what it has generated ends it already."""
        if not request.stop_strings:
            return False
        self._texts[request.request_id] = text = TextStream(self._tokenizer, request.stop_strings)
        return text.skip(generated)

    def find(self, request_id: str, tokens: Sequence[int], last: bool) -> int | None:
        """After how many of its newest tokens a stop string ends a request; None if none does."""
        text = self._texts.get(request_id)
        piece = text.push(tokens, last) if text is not None else None
        return piece.used if piece is not None and piece.stopped else None

    def forget(self, request_id: str) -> None:
        """A request has ended, or is another gateway's."""
        self._texts.pop(request_id, None)
