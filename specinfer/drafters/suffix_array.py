"""Finds where token sequences occur in a text: a suffix array over its first `LONGEST` tokens.

    tokens   the cat sat the cat ran END        suffixes in order   cat ran .. | cat sat .. | ran .. | ...
    find("the cat")  ->  the positions after its two occurrences

Built by prefix doubling in numpy: four sorts order all suffixes by their first sixteen tokens, which is
as far as a match is ever looked at. Immutable; knows no drafter.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST = 16
END = -1
"""Separator between and behind sequences; matches never continue across it."""


class SuffixArray:
    """Sequences of tokens, searchable."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        parts = [np.array([*sequence, END], np.int32) for sequence in sequences]
        self.tokens: NDArray[np.int32] = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        self._order = _sorted_suffixes(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def longest_match(self, context: Sequence[int], least: int) -> tuple[int, NDArray[np.int64]]:
        """Return the length of the longest end of `context` that occurs, and the positions behind it.

        Returns:
            (0, nothing) if not even the last `least` tokens occur.
        """
        best: tuple[int, NDArray[np.int64]] = (0, np.zeros(0, np.int64))
        low, high = least, min(LONGEST, len(context))
        while low <= high:  # if an end occurs, every shorter one does
            length = (low + high) // 2
            found = self._range(context[len(context) - length :])
            if len(found):
                best, low = (length, found + length), length + 1
            else:
                high = length - 1
        return best

    def _range(self, query: Sequence[int]) -> NDArray[np.int64]:
        """Return the range of suffixes that start with `query`."""
        wanted = list(query)

        def first_not_below(bound: list[int], strictly: bool) -> int:
            low, high = 0, len(self._order)
            while low < high:
                middle = (low + high) // 2
                at = int(self._order[middle])
                piece = self.tokens[at : at + len(bound)].tolist()
                if piece < bound or (strictly and piece == bound):
                    low = middle + 1
                else:
                    high = middle
            return low

        return self._order[first_not_below(wanted, False) : first_not_below(wanted, True)]


def _sorted_suffixes(tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return positions in the order of their first `LONGEST` tokens."""
    rank = tokens.astype(np.int64)
    order = np.argsort(rank, kind="stable")
    length = 1
    while length < LONGEST and len(tokens):
        behind = np.full(len(rank), END - 1, np.int64)
        behind[:-length] = rank[length:]
        order = np.lexsort((behind, rank))
        changes = (np.diff(rank[order]) != 0) | (np.diff(behind[order]) != 0)
        fresh = np.empty(len(rank), np.int64)
        fresh[order] = np.concatenate([[0], np.cumsum(changes)])
        rank, length = fresh, 2 * length
    return order
