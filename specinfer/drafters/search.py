"""Find earlier occurrences of a context's end, in growing or fixed texts.

text      ... the cat sat on the mat . the cat ran . the cat
matches   "the cat" -> sat on ...  (2 tokens match),  ". the cat" -> ran ...  (3 tokens match)
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_SORTED = 16
END = -1
"""Separator after every sequence. Matches never cross it."""


class SuffixArray:
    """Find token sequences in a fixed text by its sorted suffixes.

    tokens   the cat sat the cat ran END        suffixes in order   cat ran .. | cat sat .. | ran .. | ...
    find("the cat")  ->  the positions after its two occurrences

    Prefix doubling in numpy builds the array: four sorts order all suffixes by their first sixteen tokens, which is
    the maximum length of a match.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        parts = [np.array([*sequence, END], np.int32) for sequence in sequences]
        self.tokens: NDArray[np.int32] = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        self._order = _sorted_suffixes(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def longest_match(self, context: Sequence[int], shortest: int) -> tuple[int, NDArray[np.int64]]:
        """Find the longest suffix of the context, of `shortest` tokens or more.

        Returns:
            length of the suffix, and the positions after its occurrences; (0, empty array) if none occurs.
        """
        best: tuple[int, NDArray[np.int64]] = (0, np.zeros(0, np.int64))
        low, high = shortest, min(LONGEST_SORTED, len(context))
        while low <= high:  # bisection: if an end occurs, all shorter ends occur
            length = (low + high) // 2
            ranks = self._range(context[len(context) - length :])
            if len(ranks):
                best, low = (length, ranks + length), length + 1
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
    """Return positions in the order of their first `LONGEST_SORTED` tokens."""
    rank = tokens.astype(np.int64)
    order = np.argsort(rank, kind="stable")
    length = 1
    while length < LONGEST_SORTED and len(tokens):
        next_rank = np.full(len(rank), END - 1, np.int64)
        next_rank[:-length] = rank[length:]
        order = np.lexsort((next_rank, rank))
        changes = (np.diff(rank[order]) != 0) | (np.diff(next_rank[order]) != 0)
        fresh = np.empty(len(rank), np.int64)
        fresh[order] = np.concatenate([[0], np.cumsum(changes)])
        rank, length = fresh, 2 * length
    return order


LONGEST = 32
"""Maximum length of a match in tokens; earlier tokens are not compared."""
_MAX_OCCURRENCES = 64
"""Maximum returned matches: the latest; in references, evenly spaced matches."""


class Match(NamedTuple):
    """One earlier occurrence of a context's end."""

    text: Sequence[int]
    end: int
    """Position after the occurrence."""
    length: int
    """Number of matching tokens, at most `LONGEST`."""


_WEIGHT = 4.0
"""Factor by which each matching token increases a match's weight."""


def weight_of(matches: Iterable[Match]) -> float:
    """Return the sum of weights, which grow with the lengths of the matches."""
    return sum([_WEIGHT**match.length for match in matches])


def by_next_token(matches: Iterable[Match], depth: int) -> dict[int, list[Match]]:
    """Group matches by the token `depth` positions after them; `END` where their texts end."""
    groups: dict[int, list[Match]] = {}
    for match in matches:
        place = match.end + depth - 1
        groups.setdefault(match.text[place] if place < len(match.text) else END, []).append(match)
    return groups


class Occurrences:
    """Index of growing texts by n-grams, updated incrementally.

    Every position is stored by the last `shortest` tokens before it, as in LZ77's hash chains. A query compares
    earlier tokens. A suffix automaton would find the longest match directly, but needs several times the memory in
    Python, and omits shorter matches, whose continuations become branches.
    """

    def __init__(self, shortest: int) -> None:
        self._shortest = shortest
        self._ends: dict[tuple[int, ...], list[tuple[Sequence[int], int]]] = {}

    def file(self, text: Sequence[int], start: int = 0) -> None:
        """Index a text from position `start`; the text is not copied."""
        for end in range(max(start + 1, self._shortest), len(text) + 1):
            self._ends.setdefault(tuple(text[end - self._shortest : end]), []).append((text, end))

    def drop(self, text: Sequence[int]) -> None:
        """Remove the oldest text."""
        for end in range(self._shortest, len(text) + 1):
            key = tuple(text[end - self._shortest : end])
            filed = self._ends[key]
            filed.pop(0)
            if not filed:
                del self._ends[key]

    def matches(self, context: Sequence[int]) -> Iterator[Match]:
        """Yield earlier occurrences of the context's end, the latest first."""
        filed = self._ends.get(tuple(context[-self._shortest :]), ())
        matches = (
            Match(text, end, _length(text, end, context)) for text, end in reversed(filed) if end < len(text)
        )
        return islice(matches, _MAX_OCCURRENCES)


def _length(text: Sequence[int], end: int, context: Sequence[int]) -> int:
    """Return the number of tokens before `end` that equal the context's end."""
    max_length = min(LONGEST, end, len(context))
    length = 0
    while length < max_length and text[end - 1 - length] == context[-1 - length]:
        length += 1
    return length


class References:
    """Texts that a request may copy from (LLMA, arXiv 2304.04487).

    A suffix array over all of them is built once. It takes twelve bytes per token, and finds the longest match
    anywhere in a text. References are never used for learning or other requests.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._array = SuffixArray(texts)
        self._tokens = self._array.tokens.tolist()

    def matches(self, context: Sequence[int], shortest: int) -> list[Match]:
        """Return occurrences of the context's longest suffix of `shortest` or more tokens.

        The text of a match ends at `END`.
        """
        length, ends = self._array.longest_match(context, shortest)
        step = -(-len(ends) // _MAX_OCCURRENCES) or 1
        return [Match(self._tokens, end, length) for end in ends[::step].tolist()]
