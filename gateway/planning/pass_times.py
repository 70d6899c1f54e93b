"""What passes of the target take by their tokens: what the verifier said, corrected while serving. Pure."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

_LEAST_S = 1e-6
"""A pass that is told to take no time at all takes a microsecond."""
_NOISE = 0.08
"""Of one pass: its standard deviation over what is expected."""
_DRIFT, _OWN_DRIFT = 0.03, 0.02
"""From one pass to the next: of pace and growth together, and of growth alone."""
_FIRST_DOUBT = 0.3
_OUTLIER = 3.0
"""Standard deviations that a surprise counts for at most."""
_LEAST_GROWTH = 0.05
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
        self._most = sizes[-1]
        self._seconds: list[float] = np.interp(range(self._most + 1), sizes, seconds).tolist()
        """Of whole numbers of tokens: a step asks some fifty times."""

    def at(self, tokens: float) -> float:
        """Beyond all that was measured: in proportion."""
        if tokens >= self._most:
            return self._seconds[-1] * tokens / self._most
        below = int(tokens)
        here, above = self._seconds[below], self._seconds[below + 1]
        return here + (above - here) * (tokens - below)


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
    """Learns while serving what passes take: pace * T(batch) + growth * (T(tokens) - T(batch)).

    T is what the verifier said. The pace tells how fast the machine is now, the growth what tree nodes add: a
    machine that is short of memory bandwidth makes only small passes slow, one that is short of arithmetic
    only large ones. Both wander, mostly together, and every pass tells a sum of both; a Kalman filter keeps
    account of what is known of each. So passes of one kind move both, and the first ones of another
    kind tell most about what they differ in.
    """

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self.pace = self.growth = 1.0
        self._known = False
        self._pace_variance = self._growth_variance = self._covariance = 0.0

    def seconds(self, batch: int, nodes: float) -> float:
        """Expected of a pass over a batch and so many tree nodes."""
        base, added = self._parts(batch, batch + nodes)
        return self.pace * base + self.growth * added

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """Counts a pass over a batch whose trees have so many tokens, roots included."""
        base, added = self._parts(batch, tokens)
        seconds = max(seconds, _LEAST_S)
        if not self._known:
            self._begin(seconds / (base + added))
            return
        self._wander()
        of_pace = self._pace_variance * base + self._covariance * added
        of_growth = self._covariance * base + self._growth_variance * added
        expected = self.pace * base + self.growth * added
        variance = of_pace * base + of_growth * added + (_NOISE * expected) ** 2
        most = _OUTLIER * math.sqrt(variance)
        surprise = max(-most, min(seconds - expected, most)) / variance
        self.pace = max(self.pace + of_pace * surprise, _LEAST_S)
        self.growth = max(self.growth + of_growth * surprise, _LEAST_GROWTH * self.pace)
        self._pace_variance -= of_pace**2 / variance
        self._growth_variance -= of_growth**2 / variance
        self._covariance -= of_pace * of_growth / variance

    def _parts(self, batch: int, tokens: float) -> tuple[float, float]:
        """What the verifier said of the batch, and of the nodes beside it."""
        base = self._curve.at(batch)
        return base, self._curve.at(tokens) - base

    def _begin(self, pace: float) -> None:
        self.pace = self.growth = pace
        self._pace_variance = self._growth_variance = (_FIRST_DOUBT * pace) ** 2
        self._known = True

    def _wander(self) -> None:
        pace, growth = _DRIFT * self.pace, _DRIFT * self.growth
        self._pace_variance += pace**2
        self._growth_variance += growth**2 + (_OWN_DRIFT * self.pace) ** 2
        self._covariance += pace * growth
