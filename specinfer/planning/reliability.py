"""Measure the calibration error and AUC of scores as forecasts. Pure.

The expected calibration error (Guo et al., arXiv 1706.04599) uses ten groups, each of ten bins of equal
width. AUC (area under the ROC curve) is the probability that an accepted candidate had a higher score than a
rejected candidate; scores within a bin count as equal.
"""

from collections.abc import Iterable

import numpy as np

_BINS, _GROUPS = 100, 10
_MEMORY = 4000
"""Candidates after which all counts are halved.

Older texts thus matter less.
"""
MIN_CANDIDATES = 100
"""Minimum candidates for a calibration error or an AUC."""


class Reliability:
    """Counts candidates by score, and how many of them were accepted."""

    def __init__(self) -> None:
        self._counts, self._promised, self._accepted = ([0.0] * _BINS for _ in range(3))
        self._noted = 0

    def note(self, score: float, accepted: bool) -> None:
        """Count a candidate."""
        at = min(int(score * _BINS), _BINS - 1)
        self._counts[at] += 1
        self._promised[at] += score
        self._accepted[at] += accepted
        self._noted += 1
        if self._noted == _MEMORY:
            self._noted = _MEMORY // 2
            for sums in (self._counts, self._promised, self._accepted):
                sums[:] = [0.5 * value for value in sums]

    @classmethod
    def of_all(cls, parts: Iterable["Reliability"]) -> "Reliability":
        """Return the sum of several counts."""
        whole = cls()
        for part in parts:
            for sums, more in (
                (whole._counts, part._counts),
                (whole._promised, part._promised),
                (whole._accepted, part._accepted),
            ):
                sums[:] = [a + b for a, b in zip(sums, more, strict=True)]
        return whole

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error; None with too few candidates."""
        total = sum(self._counts)
        if total < MIN_CANDIDATES:
            return None
        gaps = np.subtract(self._accepted, self._promised).reshape(_GROUPS, -1).sum(1)
        return float(np.abs(gaps).sum() / total)

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve; None if undefined or with few candidates."""
        accepted = np.array(self._accepted)
        rejected = np.array(self._counts) - accepted
        pairs = accepted.sum() * rejected.sum()
        if sum(self._counts) < MIN_CANDIDATES or pairs <= 0:
            return None
        below = np.cumsum(rejected) - 0.5 * rejected
        return float((accepted * below).sum() / pairs)
