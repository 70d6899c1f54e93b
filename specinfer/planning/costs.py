"""Learn what steps cost, as ratios of times that were taken together. Pure.

The unit is the pass curve, which was measured at start: a machine that is slower today prolongs everything, so
no time is compared with a time of another moment.

- Passes: two successive steps with different tokens show how the curve is wrong. A Kalman filter keeps the
  logarithm of the curve's error by tokens. Errors have a covariance: a comparison of two trees says nothing
  about a pass without trees.
- Drafts and other work: their seconds, divided by the pace of the pass of their own step. Means are geometric,
  as a disturbance prolongs either of the two.
- Reading: context tokens that speculators missed, when they draft again.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log, sqrt
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specinfer.planning.choice import SpeculatorSet, batch_size_class
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import StepReport

_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
"""Tokens of passes at which the curve is corrected."""
_CURVE_ERROR = 0.1
"""Relative standard error of the measured curve between one token and many."""
_RELAXATION = 4000.0
"""Steps after which a correction's certainty has fallen to 1/e."""
_CLIP = 2.0
"""Standard deviations to which a difference is clipped: larger ones are disturbances."""
_DRAFT_PART = 0.25
"""Assumed seconds of a draft's level, relative to a one-token pass."""
_READ_PART = 0.2
"""Assumed seconds of speculators per token read, relative to the target's."""
_READ_PRIOR = 256.0
"""Weight of that assumption, in tokens."""
_MEMORY = 32.0
"""Values after which a mean of ratios has forgotten 1/e of what was before."""
_PASSES = 5
"""Number of latest passes whose median is the pace."""
_MIN_S = 1e-6
_NEAREST = tuple(sorted(range(-12, 13), key=abs))
"""Differences of batch classes, the smallest first."""

Floats = NDArray[np.float64]


@dataclass(slots=True)
class RatioMean:
    """Geometric mean of ratios, clipped by its own spread."""

    mean: float = 0.0
    """Mean logarithm."""
    variance: float = 0.04
    count: float = 0.0

    def add(self, ratio: float) -> None:
        """Count a ratio."""
        value = log(max(ratio, _MIN_S))
        self.count = min(self.count + 1.0, _MEMORY)
        off = value - self.mean
        if self.count > 1:
            limit = _CLIP * sqrt(self.variance)
            off = max(-limit, min(off, limit))
            self.variance += (off**2 - self.variance) / (self.count + 4.0)
        self.mean += off / self.count

    @property
    def value(self) -> float:
        """The mean ratio."""
        return exp(self.mean)


class CurveErrors:
    """Corrects the pass curve by successive passes of different tokens."""

    def __init__(self) -> None:
        places = np.log2(np.array(_TOKENS, float))
        self._prior = _CURVE_ERROR**2 * np.exp(-np.abs(places[:, None] - places) / 4)
        self.errors, self._spread = np.zeros(len(_TOKENS)), self._prior.copy()
        self._noise = RatioMean(variance=0.01)

    def observe(self, before: int, after: int, ratio: float) -> None:
        """Count a pass of `after` tokens that followed one of `before`.

        `ratio` is that of their seconds, each divided by the curve's.
        """
        a, b = _place(before), _place(after)
        off = log(ratio) - float(self.errors[b] - self.errors[a])
        limit = _CLIP * sqrt(self._noise.variance)
        off = max(-limit, min(off, limit))
        self._noise.variance += (off**2 - self._noise.variance) / _MEMORY
        if a == b:
            return
        across = self._spread[:, b] - self._spread[:, a]
        scale = float(across[b] - across[a]) + self._noise.variance
        self.errors += across * (off / scale)
        self._spread -= np.outer(across, across) / scale
        self._spread += (self._prior - self._spread) / _RELAXATION

    def factor(self, tokens: float) -> float:
        """Return the correction of the curve's seconds."""
        return exp(float(self.errors[_place(tokens)]))

    def error(self, first: float, second: float) -> float:
        """Return the relative standard error between passes of two sizes."""
        a, b = _place(first), _place(second)
        spread = self._spread
        return sqrt(max(float(spread[a, a] + spread[b, b] - 2 * spread[a, b]), 0.0))


class StepCosts:
    """Costs of passes, drafts, reading and other work, in seconds of the curve."""

    def __init__(self, curve: PassCurve) -> None:
        self.curve, self.passes = curve, CurveErrors()
        self._paces = deque([1.0], maxlen=_PASSES)
        self._before: tuple[int, int, float] | None = None
        """Batch, tokens and seconds over the curve's of the previous pass; None after a refused one."""
        self._drafts: dict[tuple[object, int], dict[int, RatioMean]] = {}
        """By (speculator or service, batch class), then by nodes."""
        self._rests: dict[tuple[bool, int], RatioMean] = {}
        """Other work, relative to a pass of the batch; by (with drafts, batch class)."""
        self._services: Sequence[SpeculatorSet] = ()
        self._read, self._read_s = _READ_PRIOR, _READ_PRIOR * _READ_PART * curve.token_seconds

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the speculators of each service."""
        self._services = services

    @property
    def pace(self) -> float:
        """Seconds of the latest passes, divided by the curve's: the median."""
        return median(self._paces)

    @property
    def read_s(self) -> float:
        """Cost for speculators to read a token."""
        return self._read_s / self._read

    def observe(self, report: StepReport) -> None:
        """Learn from a step that was not cold."""
        batch, nodes, tokens = report.batch, report.choice.nodes, report.tokens
        if not tokens:
            self._before = None
            return
        slowness = max(report.pass_s, _MIN_S) / self.curve.at(tokens)
        pace = slowness / self.passes.factor(tokens)
        self._paces.append(pace)
        read = sum([draft.read for draft in report.drafts])
        if self._before is not None and self._before[0] == batch:
            self.passes.observe(self._before[1], tokens, slowness / self._before[2])
        self._before = batch, tokens, slowness
        size = batch_size_class(batch)
        if read:
            longest = max([draft.total_s for draft in report.drafts]) / pace
            usual = self.drafting(batch, report.choice.speculators, [nodes], np.ones(1))
            self._read_s, self._read = self._read_s + max(longest - float(usual[0]), 0.0), self._read + read
            self._read_s, self._read = 0.99 * self._read_s, 0.99 * self._read
            return
        for draft in report.drafts:
            for key, seconds in ((draft.service, draft.wire_s), *draft.own_s.items()):
                means = self._drafts.setdefault((key, size), {})
                means.setdefault(nodes, RatioMean()).add(seconds / pace)
        rest = self._rests.setdefault((bool(report.choice.speculators), size), RatioMean())
        rest.add(report.overhead_s / pace / self.curve.at(batch))

    def forget_previous(self) -> None:
        """Compare the next pass with none: the step before it was cold."""
        self._before = None

    def pass_s(self, tokens: float) -> float:
        """Return the cost of a pass."""
        return self.curve.at(tokens) * self.passes.factor(tokens)

    def rest(self, batch: int, drafts: bool) -> float:
        """Return the cost of a step's other work."""
        if not self._rests:
            return 0.0
        size = batch_size_class(batch)
        key = min(self._rests, key=lambda key: (abs(key[1] - size), key[0] != drafts))
        return self._rests[key].value * self.curve.at(batch)

    def drafting(
        self, batch: int, speculators: SpeculatorSet, sizes: Sequence[int], levels: Floats
    ) -> Floats:
        """Return the cost of drafting trees of each size.

        Services draft in parallel; speculators of one service draft one after another.

        Args:
            batch: requests of the step.
            speculators: speculators that draft.
            sizes: maximum nodes of a tree.
            levels: expected levels of trees of these sizes.
        """
        longest = np.zeros(len(sizes))
        for service in self._services:
            drafting = speculators & service
            if drafting:
                parts = [self._draft(key, batch, sizes, levels) for key in (service, *drafting)]
                known = [part for part in parts if part is not None]
                guess = np.full(len(sizes), _DRAFT_PART * self.curve.at(1))
                longest = np.maximum(longest, np.sum(known, axis=0) if known else guess)
        return longest

    def _draft(self, key: object, batch: int, sizes: Sequence[int], levels: Floats) -> Floats | None:
        """Return the cost of a speculator or of a service's messages, by size.

        A size that was not timed costs the nearest one's time for each of its own levels.
        """
        size = batch_size_class(batch)
        means, off = next(
            ((means, off) for off in _NEAREST if (means := self._drafts.get((key, size + off)))), (None, 0)
        )
        if means is None:
            return None
        if len(means) == 1:
            ((at, mean),) = means.items()
            near, logs = [at] * len(sizes), [mean.mean] * len(sizes)
        else:
            timed = sorted(means)
            near = [nearest(timed, size) for size in sizes]
            logs = [means[at].mean for at in near]
        base = levels[[min(bisect_left(sizes, at), len(sizes) - 1) for at in near]]
        return np.exp(logs) * sqrt(2.0**-off) * levels / base

    def measured(self, batch: int, speculators: SpeculatorSet, nodes: int) -> bool:
        """Return whether these speculators' drafts of this size were timed."""
        size = batch_size_class(batch)
        return all(nodes in self._drafts.get((speculator, size), ()) for speculator in speculators)

    def kept(self) -> dict[str, Any]:
        """Return what a later process may begin with, as JSON."""
        return {"passes": self.passes.errors.tolist()}


def nearest(ordered: Sequence[int], value: float) -> int:
    """Return the item of a sorted sequence that is nearest to a value."""
    at = bisect_left(ordered, value)
    if at and (at == len(ordered) or ordered[at] - value > value - ordered[at - 1]):
        at -= 1
    return ordered[at]


@lru_cache(maxsize=1024)
def _place(tokens: float) -> int:
    """Return the place of the nearest size in `_TOKENS`."""
    return _TOKENS.index(nearest(_TOKENS, tokens))
