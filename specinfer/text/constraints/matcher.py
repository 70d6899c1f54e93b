"""Matchers compute the allowed next tokens of a constraint."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from specinfer.errors import ConstraintError
from specinfer.text.constraints.digits import DigitRows

Bool = NDArray[np.bool_]
_FEW_BYTES = 2
"""Bytes of a mask with allowed tokens, up to which each token is tried.

llguidance allows unknown and end tokens in place of text that no token can write, and then refuses to read them.
"""


class Matcher:
    """State of a constraint after some tokens. Not thread-safe."""

    def __init__(
        self,
        inner: LLMatcher,
        vocab_size: int,
        rows: DigitRows | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """Create a matcher; `eos_token_ids` may follow complete texts only."""
        self._inner, self._vocab_size, self._eos = inner, vocab_size, list(eos_token_ids)
        self._rows = rows
        """Counter of digits in JSON; None if the text has no JSON."""
        self.seconds = 0.0
        """Processor seconds of reading tokens, masks and forced text so far."""

    def copy(self) -> "Matcher":
        """Return an independent copy in the same state."""
        return Matcher(self._inner.deep_copy(), self._vocab_size, self._rows and self._rows.copy(), self._eos)

    @property
    def finished(self) -> bool:
        """True if the text is complete: only an end token may follow."""
        return bool(self._inner.is_stopped())

    def read(self, tokens: Sequence[int]) -> None:
        """Read the next tokens."""
        allowed = self.try_read(tokens)
        if allowed < len(tokens):
            self.take_back(allowed)
            raise ConstraintError(
                f"the constraint does not allow the token at index {allowed} of {len(tokens)} tokens"
            )

    def try_read(self, tokens: Sequence[int]) -> int:
        """Read tokens up to the first forbidden token; return the number read."""
        with self._timed():
            if self._rows is None:
                read = self._inner.try_consume_tokens(list(tokens))
            else:
                read = self._read_bounded(tokens, self._rows)
        self._check()
        return read

    def _read_bounded(self, tokens: Sequence[int], rows: DigitRows) -> int:
        """Read tokens until a token is forbidden or has too many digits."""
        for count, token in enumerate(tokens):
            if rows.full and rows.tokens.starts_with_digit(token) and not self._narrowed_mask()[token]:
                return count
            if not self._inner.try_consume_tokens([token]):
                return count
            rows.read(token)
        return len(tokens)

    def take_back(self, count: int) -> None:
        """Undo the reading of the last tokens."""
        if count:
            self._inner.rollback(count)
            if self._rows is not None:
                self._rows.take_back(count)
            self._check()

    def mask(self) -> Bool:
        """Return a mask [V], true for each token that may come next."""
        with self._timed():
            mask = self._narrowed_mask()
        self._check()
        return mask

    def _narrowed_mask(self) -> Bool:
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        doubtful = [token for token in self._eos if mask[token]]
        if np.count_nonzero(bits) <= _FEW_BYTES:  # perhaps only a stand-in for text that no token can write
            doubtful = np.flatnonzero(mask).tolist()
        for token in doubtful:
            mask[token] = self._may_follow(token)
        return mask if self._rows is None else self._rows.narrowed(mask)

    def _may_follow(self, token: int) -> bool:
        if token in self._eos:
            return self.finished or bool(self._inner.is_accepting())
        return bool(self._inner.validate_tokens([token]) == 1)

    def forced(self) -> list[int]:
        """Return tokens of the text that must follow; empty without such text.

        Other tokens may spell the same text, so the target may choose differently.
        """
        with self._timed():
            tokens = [] if self.finished else self._inner.compute_ff_tokens()
        self._check()
        return list(tokens)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        before = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - before

    def _check(self) -> None:
        """Raise the error that llguidance recorded, if there is one."""
        if self._inner.is_error():
            raise ConstraintError(f"too complex: {first_line(self._inner.get_error())}")


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
