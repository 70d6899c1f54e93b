"""Times of the target's passes by their tokens: the verifier's measurements, corrected while serving. Pure."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from math import exp, log, log2
from statistics import median

import numpy as np
from numpy.typing import NDArray

_WINDOW = 15
"""Values that count: a change is believed once eight of them show it."""
_FEW = 8
"""Number of values below which the lower ones are believed: disturbances only prolong."""


class Recent:
    """Mean of the last values without the highest and the lowest."""

    __slots__ = ("_latest", "_ordered", "_outer", "value")

    def __init__(self, outer: int = 6) -> None:
        """Leave out one in `outer` values at both ends.

        A sixth is near the average, a third follows a change only when most values show it.
        """
        self._outer = outer
        self._latest = deque[float]()
        self._ordered: list[float] = []
        self.value = 0.0

    def __len__(self) -> int:
        """Return the number of values that count."""
        return len(self._ordered)

    def add(self, value: float) -> None:
        """Count a value."""
        latest, ordered = self._latest, self._ordered
        if len(latest) == _WINDOW:
            del ordered[bisect_left(ordered, latest.popleft())]
        latest.append(value)
        insort(ordered, value)
        if len(ordered) < _FEW:
            self.value = ordered[len(ordered) // 3]
            return
        left_out = len(ordered) // self._outer
        self.value = sum(ordered[left_out:-left_out]) / (len(ordered) - 2 * left_out)


_LEAST_S = 1e-6
"""Least seconds of a measured pass: nothing is free."""
_ROW = 1e-4
"""Least price of a token more, as part of a pass over one."""
_PER_OCTAVE = 4
"""Sizes of passes that are distinguished while their tokens double."""
_KNOWN = 5
"""Passes of one size after which its errors count as the machine's pace."""
_PACE, _LATEST = 0.2, 5
"""Part of the latest errors' median that the pace follows, and the number of these errors."""
_LASTING = 300.0
"""Passes after which 1/e of a pace that lasts is taken for usual."""


class PassCurve:
    """Seconds of a pass by its tokens, interpolated between the verifier's measurements, always rising."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """Take (tokens, seconds) points.

        A pass takes no longer than any that was measured with more tokens: disturbances only prolong passes.

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
        """(first, last) -> [1 + last - first] seconds of passes over that many tokens; beyond the largest
        that was measured in proportion. Cached, as batch sizes repeat."""

    def _between(self, first: int, last: int) -> NDArray[np.float64]:
        tokens = np.arange(first, last + 1)
        beyond = np.maximum(tokens / self._sizes[-1], 1.0)
        return np.asarray(np.interp(tokens, self._sizes, self._seconds) * beyond)

    def at(self, tokens: float) -> float:
        """Return the seconds of one pass, interpolated between whole numbers of tokens."""
        whole = int(tokens)
        first, second = self.between(whole, whole + 1).tolist()
        return float(first + (tokens - whole) * (second - first))

    @property
    def token_seconds(self) -> float:
        """Seconds for a token of the largest pass that was measured."""
        return float(self._seconds[-1] / self._sizes[-1])


class PassTimes:
    """Learns the seconds of passes while serving: T(tokens) * correction(tokens) * pace.

    T is the verifier's measurement, which may have been disturbed. The correction is the trimmed mean of the
    latest passes of about that size over T (`Recent`), interpolated between sizes that were seen and that of the
    nearest one beyond them, so that a first pass corrects the whole curve. The pace is common to all: it compares
    earlier measurements with the present at the speed that the machine has now.
    """

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self._pace = 0.0  # these are logarithms
        self._errors = deque[float](maxlen=_LATEST)
        self._keys: list[int] = []
        self._places: list[float] = []
        """Mean log2 of the tokens of each size that was seen."""
        self._corrections: list[Recent] = []

    @property
    def pace(self) -> float:
        """Seconds of passes over their usual ones."""
        return exp(self._pace)

    def seconds(self, tokens: float) -> float:
        """Return the seconds to expect of a pass."""
        return self._curve.at(tokens) * exp(self._pace + self._correction(log2(tokens)))

    def observe(self, tokens: int, seconds: float) -> None:
        """Count a pass."""
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
