"""Which tokens may follow the generated ones. No thread may use one while another does."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from specinfer.errors import ConstraintError

Bool = NDArray[np.bool_]


class Matcher:
    """A constraint, and the tokens of a request that it has read."""

    def __init__(self, inner: LLMatcher, vocab_size: int) -> None:
        self._inner, self._vocab_size = inner, vocab_size

    def copy(self) -> "Matcher":
        """One that reads on by itself."""
        return Matcher(self._inner.deep_copy(), self._vocab_size)

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing but the end of the sequence may follow."""
        return bool(self._inner.is_stopped())

    def read(self, tokens: Sequence[int]) -> None:
        """These are the next ones.

        Raises:
            ConstraintError: if one of them may not be; then none was read.
        """
        allowed = self.try_read(tokens)
        if allowed < len(tokens):
            self.take_back(allowed)
            raise ConstraintError(f"the constraint does not allow token {allowed} of {len(tokens)} behind it")

    def try_read(self, tokens: Sequence[int]) -> int:
        """Reads them up to the first that may not follow; how many were read.

        Raises:
            ConstraintError: if it is too complex.
        """
        read = self._inner.try_consume_tokens(list(tokens))
        self._check()
        return read

    def take_back(self, count: int) -> None:
        """The last tokens that were read were not."""
        if count:
            self._inner.rollback(count)
            self._check()

    def mask(self) -> Bool:
        """[V] whether each token may come next.

        Raises:
            ConstraintError: if it is too complex.
        """
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def forced(self) -> list[int]:
        """Tokens of the text that has to come next, cut as the tokenizer cuts it; empty if there is a choice.

        The same text may be cut otherwise, so a target may choose other tokens.
        """
        tokens = [] if self.finished else self._inner.compute_ff_tokens()
        self._check()
        return list(tokens)

    def _check(self) -> None:
        """llguidance raises nothing: it remembers that something went wrong."""
        if self._inner.is_error():
            raise ConstraintError(f"the constraint is too complex: {first_line(self._inner.get_error())}")


def first_line(text: str) -> str:
    """Of a message of several."""
    return text.strip().partition("\n")[0]
