"""What passes of the target take by their tokens: what the verifier said, corrected while serving. Pure."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_NOISE = 0.08
"""Of one pass: its standard deviation over what is expected."""
_DRIFT, _OWN_DRIFT = 0.03, 0.02
"""Standard deviation of a step of the random walk of pace and slope together, and of the slope alone."""
_OUTLIER = 3.0
"""Standard deviations that an error counts for at most."""
_LEAST_S, _LEAST = 1e-6, 1e-3
"""What the verifier tells, in seconds, and pace and slope stay positive: nothing is free."""


class PassCurve:
    """Seconds of a pass by its tokens, from what the verifier measured: interpolated, never falling."""

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
        self._seconds = np.minimum.accumulate(np.maximum(measured, _LEAST_S)[::-1])[::-1]
        self.between = lru_cache(maxsize=256)(self._between)
        """(first, last) -> [1 + last - first] seconds of passes over that many tokens. Beyond all that was
        measured: in proportion. Batch sizes come again and again."""

    def _between(self, first: int, last: int) -> NDArray[np.float64]:
        tokens = np.arange(first, last + 1)
        beyond = np.maximum(tokens / self._sizes[-1], 1.0)
        return np.asarray(np.interp(tokens, self._sizes, self._seconds) * beyond)

    def at(self, tokens: int) -> float:
        """Seconds of one pass."""
        return float(self.between(tokens, tokens)[0])


class PassTimes:
    """Learns while serving what passes take: pace * T(batch) + slope * (T(tokens) - T(batch)).

    T is what the verifier said. The pace tells how fast the machine is now, the slope what tree nodes add: a
    machine that is short of memory bandwidth makes only small passes slow, one that is short of arithmetic
    only large ones. Both are a random walk, mostly together, and every pass shows a sum of both, so a Kalman
    filter estimates them: the first passes of another kind tell most about what they differ in.
    One pace for both is slower where T is wrong (docs/findings.md#pass-filter).
    """

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self._state = np.ones(2)
        self._variance = np.array([[1.0, 1.0], [1.0, 1.1]]) * 100  # unknown, but not far from each other

    @property
    def pace(self) -> float:
        """Seconds of a pass without trees over what the verifier said."""
        return float(self._state[0])

    def seconds_by_nodes(self, batch: int, most_nodes: int) -> NDArray[np.float64]:
        """[1 + most_nodes] expected seconds of passes over a batch and 0, 1, ... tree nodes."""
        said = self._curve.between(batch, batch + most_nodes)
        return np.asarray(self._state[0] * said[0] + self._state[1] * (said - said[0]))

    def observe(self, batch: int, tokens: int, seconds: float) -> None:
        """Counts a pass over a batch whose trees have so many tokens, roots included."""
        base, whole = self._curve.at(batch), self._curve.at(tokens)
        parts = np.array([base, whole - base]) / whole
        drift = _DRIFT * self._state
        self._variance += np.outer(drift, drift) + np.diag([0.0, (_OWN_DRIFT * self.pace) ** 2])
        expected, gain = parts @ self._state, self._variance @ parts
        variance = parts @ gain + (_NOISE * expected) ** 2
        most = _OUTLIER * np.sqrt(variance)
        error = np.clip(seconds / whole - expected, -most, most)
        self._state = np.maximum(self._state + gain * error / variance, _LEAST)
        self._variance -= np.outer(gain, gain) / variance
