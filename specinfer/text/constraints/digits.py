"""Limit the digits of JSON's numbers, which may grow without end otherwise."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

MAX_DIGITS = 32
"""Maximum consecutive digits, enough for 64-bit integers."""
_DIGITS = frozenset(b"0123456789")
_QUOTE, _BACKSLASH, _LINE_BREAK = b'"\\\n'
_AFTER_DIGITS = frozenset([b"", *[bytes([byte]) for byte in b"0123456789.eE,]} \t\r\n"]])
_OPENING, _CLOSING = frozenset(b"{["), frozenset(b"}]")


class _Place(NamedTuple):
    """State of the JSON reader after some tokens."""

    depth: int = 0
    """Number of open objects and lists."""
    in_string: bool = False
    escaped: bool = False
    """True after a backslash in a string."""
    digits: int = 0
    """Number of consecutive digits at the prefix's end, outside strings."""
    before: "_Place | None" = None
    """State before the last token."""


class DigitTokens:
    """Finds a tokenizer's tokens that start with a digit."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    def bytes_of(self, token: int) -> bytes:
        return bytes(self._tokenizer.decode_bytes([token]))

    def starts_with_digit(self, token: int) -> bool:
        """Return whether a token's first byte is a digit."""
        return not _DIGITS.isdisjoint(self.bytes_of(token)[:1])

    @cached_property
    def non_digits(self) -> NDArray[np.bool_]:
        """Mask [V] of the tokens that do not start with a digit."""
        return np.array([not self.starts_with_digit(token) for token in range(self._vocab_size)])

    @cached_property
    def not_after_numbers(self) -> NDArray[np.bool_]:
        """Mask [V] of the tokens that cannot follow a digit in JSON."""
        return np.array([self.bytes_of(token)[:1] not in _AFTER_DIGITS for token in range(self._vocab_size)])


class DigitRows:
    """Count consecutive digits in a request's text."""

    def __init__(self, tokens: DigitTokens, all_json: bool) -> None:
        """Start with an empty text.

        Args:
            tokens: the tokenizer's tokens.
            all_json: True: the whole text is JSON; False: only parts in braces or brackets are JSON.
        """
        self.tokens, self._all_json = tokens, all_json
        self._place = _Place()

    def copy(self) -> "DigitRows":
        copied = DigitRows(self.tokens, self._all_json)
        copied._place = self._place
        return copied

    @property
    def full(self) -> bool:
        """True if no further digit may follow."""
        return self._place.digits >= MAX_DIGITS

    def read(self, token: int) -> None:
        depth, in_string, escaped, digits, _ = self._place
        for byte in self.tokens.bytes_of(token):
            if in_string:
                in_string = byte != _LINE_BREAK and (escaped or byte != _QUOTE)
                escaped = byte == _BACKSLASH and not escaped
                continue
            depth = max(0, depth + (byte in _OPENING) - (byte in _CLOSING))
            in_json = self._all_json or depth > 0
            in_string = in_json and byte == _QUOTE
            digits = digits + 1 if in_json and byte in _DIGITS else 0
        self._place = _Place(depth, in_string, escaped, digits, self._place)

    def take_back(self, count: int) -> None:
        """Undo the reading of the last tokens."""
        for _ in range(count):
            assert self._place.before is not None
            self._place = self._place.before

    def narrowed(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Remove digits from a mask [V] if `full`.

        If the mask has only digits, it is returned unchanged; so it is if text may follow that cannot follow a number
        in JSON: braces in words and in arguments without quotes do not make them JSON.
        """
        if not self.full or (not self._all_json and bool((mask & self.tokens.not_after_numbers).any())):
            return mask
        other_tokens = mask & self.tokens.non_digits
        return other_tokens if other_tokens.any() else mask
