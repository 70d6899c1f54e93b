"""The text of tokens, for people to look at."""

from collections.abc import Sequence

from specinfer.detokenizer import Detokenizer
from specinfer.scheduling.step import Progress
from specinfer.tokenizer import Tokenizer

_MOST_KEPT = 100_000
"""Texts of tokens that are remembered; a vocabulary has as many."""


class TokenTexts:
    """What single tokens say. Remembers them: looking at one costs ten times as much."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def of(self, token_id: int) -> str:
        """The text of a token."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._tokenizer.text_of_token(token_id)
            if len(self._texts) < _MOST_KEPT:
                self._texts[token_id] = text
        return text


class RequestText:
    """The text of one request as it grows, whatever of it is told."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._read = 0

    def push(self, item: Progress) -> Sequence[str]:
        """The text that each of some new tokens completes."""
        prompt = len(item.state.request.prompt)
        self._detokenizer.push(item.state.tokens[prompt + self._read : prompt + item.start])  # was not told
        self._read = item.start + len(item.tokens)
        texts = [self._detokenizer.push([token]) for token in item.tokens]
        if item.final and texts:
            texts[-1] += self._detokenizer.flush()
        return texts
