"""Texts that one request may copy from (LLMA, arXiv 2304.04487): retrieved documents, a text to be edited.

They do not grow, so a suffix array over all of them is built once: it takes twelve bytes for each token and
finds the longest match wherever in a text it is. Nothing of them is learnt, nor seen by another request.
"""

from collections.abc import Sequence

from specinfer.drafters.occurrences import Match
from specinfer.drafters.suffix_array import SuffixArray

_MOST = 64
"""Most occurrences that are examined, spread evenly over all."""


class References:
    """Texts of one request, searchable."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._array = SuffixArray(texts)
        self._tokens = self._array.tokens.tolist()

    def matches(self, context: Sequence[int], least: int) -> list[Match]:
        """Return the occurrences of the longest end of a context that occurs; none if shorter than `least`.

        What follows a match ends at `END`, where its text ends.
        """
        length, ends = self._array.longest_match(context, least)
        step = -(-len(ends) // _MOST) or 1
        return [Match(self._tokens, end, length) for end in ends[::step].tolist()]
