"""Earlier occurrences of a context's end in texts that grow token by token; nothing is ever rebuilt.

    text      ... the cat sat on the mat . the cat ran . the cat
    matches   "the cat" -> sat on ...  (2 tokens match),  ". the cat" -> ran ...  (3 tokens match)

Every position is filed under its last `shortest` tokens, as in LZ77's hash chains; how much more matches
before them is examined on request. A suffix automaton would find the longest match without looking,
but takes several times the memory in Python, and does not give the continuations of shorter matches, which become
branches.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

LONGEST = 32
"""Most tokens of a match that are counted."""
_MOST = 64
"""Most occurrences that are examined, the latest ones."""


class Match(NamedTuple):
    """One earlier occurrence of a context's end."""

    text: Sequence[int]
    """Text that contains the occurrence."""
    end: int
    """Position behind the occurrence."""
    length: int
    """Number of matching tokens, at most `LONGEST`."""


class Occurrences:
    """Texts, indexed by their n-grams."""

    def __init__(self, shortest: int) -> None:
        self._shortest = shortest
        self._ends: dict[tuple[int, ...], list[tuple[Sequence[int], int]]] = {}

    def file(self, text: Sequence[int], start: int = 0) -> None:
        """Index a text, or the part appended to it behind `start`; the sequence itself is kept."""
        for end in range(max(start + 1, self._shortest), len(text) + 1):
            self._ends.setdefault(tuple(text[end - self._shortest : end]), []).append((text, end))

    def drop(self, text: Sequence[int]) -> None:
        """Forget the text that was added first."""
        for end in range(self._shortest, len(text) + 1):
            key = tuple(text[end - self._shortest : end])
            filed = self._ends[key]
            filed.pop(0)
            if not filed:
                del self._ends[key]

    def matches(self, context: Sequence[int]) -> Iterator[Match]:
        """Return the latest occurrences of the context's last tokens, the latest first; never its own end."""
        filed = self._ends.get(tuple(context[-self._shortest :]), ())
        found = (
            Match(text, end, _length(text, end, context)) for text, end in reversed(filed) if end < len(text)
        )
        return islice(found, _MOST)


def _length(text: Sequence[int], end: int, context: Sequence[int]) -> int:
    """Return how many tokens before `end` equal the context's last ones."""
    most = min(LONGEST, end, len(context))
    length = 0
    while length < most and text[end - 1 - length] == context[-1 - length]:
        length += 1
    return length
