"""What passes of the target take by their tokens: what the verifier said, corrected while serving. Pure."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_LEAST_S = 1e-6
"""A pass that is told to take no time at all takes a microsecond."""
_NOISE = 0.08
"""Of one pass: its standard deviation over what is expected."""
_DRIFT, _OWN_DRIFT = 0.03, 0.02
"""From one pass to the next: of pace and slope together, and of slope alone."""
_FIRST_DOUBT = 0.3
_OUTLIER = 3.0
"""Standard deviations that a surprise counts for at most."""
_LEAST_SLOPE = 0.05
"""Nodes are never believed to be free: of what the verifier said, at the pace of the moment."""


class PassCurve:
    """Seconds of a pass by its tokens, from what the verifier measured: interpolated, never falling."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """`points` are (tokens, seconds).

        Raises:
            ValueError: if there is none.
        """
        ordered = sorted(points)
        if not ordered:
            raise ValueError("a curve needs a point")
        sizes = [tokens for tokens, _ in ordered]
        seconds = _never_falling([max(seconds, _LEAST_S) for _, seconds in ordered])
        self._sizes, self._measured = np.array(sizes, float), np.array(seconds)

    def between(self, first: int, last: int) -> NDArray[np.float64]:
        """[1 + last - first] seconds of passes over that many tokens. Beyond all that was measured: in
        proportion."""
        tokens = np.arange(first, last + 1)
        beyond = np.maximum(tokens / self._sizes[-1], 1.0)
        return np.asarray(np.interp(tokens, self._sizes, self._measured) * beyond)

    def at(self, tokens: int) -> float:
        """Seconds of one pass."""
        return float(self.between(tokens, tokens)[0])


def _never_falling(values: Sequence[float]) -> list[float]:
    """The sequence nearest to `values` (least squares) that never falls: what falls is levelled out."""
    levels: list[tuple[float, int]] = []  # mean, values
    for value in values:
        mean, count = value, 1
        while levels and levels[-1][0] > mean:
            other, others = levels.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        levels.append((mean, count))
    return [mean for mean, count in levels for _ in range(count)]


class PassTimes:
    """Learns while serving what passes take: pace * T(batch) + slope * (T(tokens) - T(batch)).

    T is what the verifier said. The pace tells how fast the machine is now, the slope what tree nodes add: a
    machine that is short of memory bandwidth makes only small passes slow, one that is short of arithmetic
    only large ones. Both wander, mostly together, and every pass tells a sum of both; a Kalman filter keeps
    account of what is known of each. So passes of one kind move both, and the first ones of another
    kind tell most about what they differ in.
    """

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self.pace = self.slope = 1.0
        self._known = False
        self._pace_variance = self._slope_variance = self._covariance = 0.0

    def seconds_by_nodes(self, batch: int, most_nodes: int) -> NDArray[np.float64]:
        """[1 + most_nodes] expected seconds of passes over a batch and 0, 1, ... tree nodes."""
        said = self._curve.between(batch, batch + most_nodes)
        return np.asarray(self.pace * said[0] + self.slope * (said - said[0]))

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """Counts a pass over a batch whose trees have so many tokens, roots included."""
        base, added = self._parts(batch, tokens)
        seconds = max(seconds, _LEAST_S)
        if not self._known:
            self._begin(seconds / (base + added))
            return
        self._wander()
        of_pace = self._pace_variance * base + self._covariance * added
        of_slope = self._covariance * base + self._slope_variance * added
        expected = self.pace * base + self.slope * added
        variance = of_pace * base + of_slope * added + (_NOISE * expected) ** 2
        most = _OUTLIER * math.sqrt(variance)
        surprise = max(-most, min(seconds - expected, most)) / variance
        self.pace = max(self.pace + of_pace * surprise, _LEAST_S)
        self.slope = max(self.slope + of_slope * surprise, _LEAST_SLOPE * self.pace)
        self._pace_variance -= of_pace**2 / variance
        self._slope_variance -= of_slope**2 / variance
        self._covariance -= of_pace * of_slope / variance

    def _parts(self, batch: int, tokens: int) -> tuple[float, float]:
        """What the verifier said of the batch, and of the nodes beside it."""
        base = self._curve.at(batch)
        return base, self._curve.at(tokens) - base

    def _begin(self, pace: float) -> None:
        self.pace = self.slope = pace
        self._pace_variance = self._slope_variance = (_FIRST_DOUBT * pace) ** 2
        self._known = True

    def _wander(self) -> None:
        pace, slope = _DRIFT * self.pace, _DRIFT * self.slope
        self._pace_variance += pace**2
        self._slope_variance += slope**2 + (_OWN_DRIFT * self.pace) ** 2
        self._covariance += pace * slope
