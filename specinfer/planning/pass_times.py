"""What passes of the target take by their tokens: what the verifier said, put right while serving. Pure."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from math import exp, log, log2
from statistics import median

import numpy as np
from numpy.typing import NDArray

from specinfer.planning.recent import Recent

_LEAST_S = 1e-6
"""What the verifier tells, in seconds, stays positive: nothing is free."""
_ROW = 1e-4
"""Least price of a token more, as part of a pass over one."""
_PER_OCTAVE = 4
"""Sizes of passes that are told apart while their tokens double."""
_KNOWN = 5
"""Passes of one size after which its errors tell of the machine's pace."""
_PACE, _LATEST = 0.2, 5
"""How much of the latest errors' median the pace follows."""
_LASTING = 300.0
"""Passes after which 1/e of a pace that lasts is taken for usual."""


class PassCurve:
    """Seconds of a pass by its tokens, from what the verifier measured: interpolated, always rising."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """`points` are (tokens, seconds). A pass takes no longer than any that was measured with more tokens:
        disturbances only prolong passes.

        Raises:
            ValueError: if there is none.
        """
        ordered = sorted(points)
        if not ordered:
            raise ValueError("a curve needs a point")
        self._sizes, measured = np.array(ordered, float).T
        level = np.minimum.accumulate(np.maximum(measured, _LEAST_S)[::-1])[::-1]
        self._seconds = level + _ROW * level[0] * (self._sizes - self._sizes[0])
        self.between = lru_cache(maxsize=256)(self._between)
        """(first, last) -> [1 + last - first] seconds of passes over that many tokens. Beyond all that was
        measured: in proportion. Batch sizes come again and again."""

    def _between(self, first: int, last: int) -> NDArray[np.float64]:
        tokens = np.arange(first, last + 1)
        beyond = np.maximum(tokens / self._sizes[-1], 1.0)
        return np.asarray(np.interp(tokens, self._sizes, self._seconds) * beyond)

    def at(self, tokens: float) -> float:
        """Seconds of one pass; of a part of a token that part."""
        whole = int(tokens)
        first, second = self.between(whole, whole + 1).tolist()
        return float(first + (tokens - whole) * (second - first))

    @property
    def token_seconds(self) -> float:
        """Seconds for a token of the largest pass that was measured."""
        return float(self._seconds[-1] / self._sizes[-1])


class PassTimes:
    """Learns while serving what passes take: T(tokens) * correction(tokens) * pace.

    T is what the verifier said, which may have been disturbed. The correction is the middle of what passes of
    about that size lately took over it (`Recent`); between sizes that were seen it is interpolated, beyond
    them it is the nearest one's, so that a first pass puts the whole curve right. The pace is common to all:
    what was seen long ago is compared with the present at the speed that the machine has now.
    """

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self._pace = 0.0  # these are logarithms
        self._errors = deque[float](maxlen=_LATEST)
        self._keys: list[int] = []
        self._places: list[float] = []
        """Of each size that was seen, log2 of its tokens on average."""
        self._corrections: list[Recent] = []

    @property
    def pace(self) -> float:
        """Seconds of passes over what they usually take."""
        return exp(self._pace)

    def seconds(self, tokens: float) -> float:
        """Seconds to expect of a pass."""
        return self._curve.at(tokens) * exp(self._pace + self._correction(log2(tokens)))

    def observe(self, tokens: int, seconds: float) -> None:
        """Counts a pass."""
        error = log(max(seconds, _LEAST_S) / self._curve.at(tokens)) - self._pace
        place = log2(tokens)
        key = round(_PER_OCTAVE * place)
        index = bisect_left(self._keys, key)
        if index == len(self._keys) or self._keys[index] != key:
            self._keys.insert(index, key)
            self._places.insert(index, place)
            self._corrections.insert(index, Recent(outer=3))
        seen = self._corrections[index]
        if len(seen) >= _KNOWN:
            self._errors.append(error - seen.value)
            self._pace += _PACE * median(self._errors) - self._pace / _LASTING
        seen.add(error)
        self._places[index] += (place - self._places[index]) / len(seen)

    def _correction(self, place: float) -> float:
        places, seen = self._places, self._corrections
        if not seen:
            return 0.0
        after = bisect_left(places, place)
        if after in (0, len(places)):
            return seen[after - bool(after)].value
        first, last = places[after - 1], places[after]
        part = (place - first) / (last - first)
        return seen[after - 1].value * (1 - part) + seen[after].value * part
