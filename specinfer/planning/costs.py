"""Learn costs of steps from ratios of simultaneous times. Pure.

The unit is the pass curve, which was measured at start. A machine that is slower today prolongs everything, so
times of different moments are never compared:

- Drafts and other work count by their seconds over the pace of the pass of their own step. Means are geometric,
  as a disturbance prolongs either of the two.
- Two successive steps of different rows show by how much their seconds differ from that sum (a draft also empties
  the caches for the pass after it, the curve may be wrong). A Kalman filter keeps the logarithm of each row's
  factor, plain decoding's being 1. Factors have a covariance: a tree is evidence for similar trees, and a
  comparison of two trees is none for plain decoding.
- Reading counts by the context tokens that speculators missed, when they draft again.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log, log2, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specinfer.planning.choice import SpeculatorSet, batch_size_class
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import DraftTime, StepReport

_TREE_ERROR, _SET_ERROR, _SIZE_ERROR, _SLOPE_ERROR = 0.2, 0.1, 0.05, 0.1
"""Relative standard errors of a tree's expected cost.

They are: common to all trees, of a set, of a size; and of each doubling of the nodes.
"""
_RELAXATION = 8000.0
"""Steps after which the certainty of factors has fallen to 1/e."""
_CLIP = 2.0
"""Standard deviations to which a difference is clipped."""
_DRAFT_PART = 0.25
"""Assumed seconds of an untimed draft, relative to a one-token pass."""
_READ_PART = 0.2
"""Assumed seconds of speculators per token read, relative to the target's."""
_READ_PRIOR = 256.0
"""Weight of that assumption, in tokens."""
_READ_KEPT = 0.9
"""Weight of earlier readings after a further one."""
_MEMORY = 32.0
"""Values after which the weight of an earlier ratio has fallen to 1/e."""
_HALF = 2000.0
"""Steps that halve the weight of old draft costs; afterwards the drafts are tried again."""
_PASSES = 5
"""Number of latest passes whose median is the pace."""
SETTLING = 6
"""Untimed steps after a change of speculators: the caches contain other weights.

A model of 80 MB takes 1.38, 1.22, 1.11, 1.07, 1.05, 1.03 of its time in the plain steps after trees.
"""
_PAIRED = 4
"""Number of latest timings for comparisons."""
_MIN_S = 1e-6
_NEAREST = tuple(sorted(range(-12, 13), key=abs))
"""Differences of batch classes, the smallest first."""

Floats = NDArray[np.float64]
PLAIN_SET: SpeculatorSet = frozenset()
RowKey = tuple[SpeculatorSet, int]
"""Speculators, and nodes per request."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 127)
"""Numbers of nodes per request that the planner considers."""


@dataclass(slots=True)
class RatioMean:
    """Geometric mean of ratios, clipped by its own spread."""

    mean: float = 0.0
    """Mean logarithm."""
    variance: float = 0.04
    count: float = 0.0
    step: int = 0
    """Step of the latest ratio."""

    def add(self, ratio: float, step: int) -> None:
        """Count a ratio of a step."""
        self.step = step
        value = log(max(ratio, _MIN_S))
        self.count = min(self.count + 1.0, _MEMORY)
        off = value - self.mean
        if self.count > 1:
            limit = _CLIP * sqrt(self.variance)
            off = max(-limit, min(off, limit))
            self.variance += (off**2 - self.variance) / (self.count + 4.0)
        self.mean += off / self.count

    def faded(self, guess: float, step: int) -> float:
        """Return the mean logarithm; long after the latest ratio that of a smaller guess."""
        part: float = 0.5 ** ((step - self.step) / _HALF)
        return self.mean - (1 - part) * max(self.mean - log(guess), 0.0)


class _Timing(NamedTuple):
    """A settled step: its row (None for plain decoding), and its seconds over the expected ones."""

    row: RowKey | None
    off: float


class RowFactors:
    """Factors of the costs of rows in one batch class, over that of plain decoding."""

    def __init__(self, sets: Sequence[SpeculatorSet], sizes: Sequence[int]) -> None:
        self._places = {(one, size): i for i, (one, size) in enumerate(product(sets, sizes))}
        of_set = np.repeat(np.arange(len(sets)), len(sizes))
        doublings = np.tile(np.log2(np.array(sizes, float)), len(sets))
        near = np.exp(-np.abs(doublings[:, None] - doublings) / 2)
        same = of_set[:, None] == of_set
        slopes = _SLOPE_ERROR**2 * np.outer(doublings, doublings)
        prior = _TREE_ERROR**2 + slopes + same * (_SET_ERROR**2 + _SIZE_ERROR**2 * near)
        self._prior = np.pad(prior, (0, 1))
        """Covariance at first; the last row and column, of plain decoding, are 0."""
        self._logs, self._spread = np.zeros(len(self._prior)), self._prior.copy()
        self._noise, self._pairs = 0.02, 4.0
        """Variance of the logarithm of two steps' ratio, and its number of pairs."""
        self.plain_pairs = 0
        """Number of comparisons with plain decoding, and of first trials for them."""

    def observe(self, before: RowKey | None, after: RowKey | None, ratio: float) -> None:
        """Count two successive steps; None stands for plain decoding.

        `ratio` is that of their seconds, each divided by what was expected without factors.
        """
        a, b = self._place(before), self._place(after)
        off = log(ratio) - float(self._logs[b] - self._logs[a])
        limit = _CLIP * sqrt(self._noise)
        off = max(-limit, min(off, limit))
        self._pairs = min(self._pairs + 1, _MEMORY)
        self._noise += (off**2 - self._noise) / self._pairs
        if a != b:
            self.plain_pairs += before is None or after is None
            across = self._spread[:, b] - self._spread[:, a]
            scale = float(across[b] - across[a]) + self._noise
            self._logs += across * (off / scale)
            self._spread -= np.outer(across, across / scale)

    def age(self, steps: int) -> None:
        """Lose certainty: machines change."""
        self._logs *= 1 - steps / _RELAXATION
        self._spread += (self._prior - self._spread) * (steps / _RELAXATION)

    def of(self, speculators: SpeculatorSet, sizes: Sequence[int]) -> Floats:
        """Return the factors of a set's first sizes."""
        at = self._places[speculators, sizes[0]]
        return np.exp(self._logs[at : at + len(sizes)])

    def error(self, row: RowKey | None, other: RowKey | None) -> float:
        """Return the relative standard error between two rows."""
        a, b, spread = self._place(row), self._place(other), self._spread
        return sqrt(max(float(spread[a, a] + spread[b, b] - 2 * spread[a, b]), 0.0))

    def kept(self) -> tuple[list[float], list[list[float]], float, float, int]:
        """Return what `restore` takes."""
        return self._logs.tolist(), self._spread.tolist(), self._noise, self._pairs, self.plain_pairs

    def restore(
        self, logs: list[float], spread: list[list[float]], noise: float, pairs: float, plain_pairs: int
    ) -> None:
        """Set what was learned in another process."""
        self._logs = np.array(logs, float).reshape(self._logs.shape)
        self._spread = np.array(spread, float).reshape(self._spread.shape)
        self._noise, self._pairs, self.plain_pairs = float(noise), float(pairs), int(plain_pairs)

    def _place(self, row: RowKey | None) -> int:
        return -1 if row is None else self._places[row]


class StepCosts:
    """Costs of rows and of reading, in seconds of the curve."""

    def __init__(self, curve: PassCurve) -> None:
        self.curve = curve
        self._sets: Sequence[SpeculatorSet] = ()
        self.tables: dict[int, RowFactors] = {}
        """Factors by batch class."""
        self._paces = deque([1.0], maxlen=_PASSES)
        self._step = 0
        self.timed: dict[tuple[SpeculatorSet, int], dict[int, RatioMean]] = {}
        """Seconds of drafts and other work, by (speculators, batch class), then by nodes."""
        self.reading: dict[int, tuple[float, float]] = {}
        """Weighted sums over readings by speculator: tokens, and their cost."""
        self._deferred: Counter[int] = Counter()
        """Context tokens that a service has and a speculator has not read yet."""
        self._batch = 0
        """Batch of the previous step."""
        self._before: _Timing | None = None
        """Timing of the previous step if it was settled."""
        self._latest: dict[bool, deque[_Timing]] = {drafts: deque(maxlen=_PAIRED) for drafts in (False, True)}
        """Latest timings with drafts (True) and without that were not compared yet."""
        self._drafted, self._alike = PLAIN_SET, 0
        """Speculators of the previous step, and the number of steps before it with the same."""

    def enrol(self, sets: Sequence[SpeculatorSet]) -> None:
        """Set the sets of speculators that may draft."""
        self._sets, self.tables, self._before = sets, {}, None
        for timings in self._latest.values():
            timings.clear()

    def age(self, batch: int, steps: int) -> None:
        """Lose certainty by some steps of a batch."""
        self._step += steps
        self.factors(batch).age(steps)

    def factors(self, batch: int) -> RowFactors:
        """Return the factors for a batch."""
        return self.factors_of(batch_size_class(batch))

    def factors_of(self, size: int) -> RowFactors:
        """Return the factors of a batch class."""
        if size not in self.tables:
            self.tables[size] = RowFactors(self._sets, SIZES)
        return self.tables[size]

    @property
    def pace(self) -> float:
        """Seconds of the latest passes, divided by the curve's: the median."""
        return median(self._paces)

    def read_s(self, speculator: int) -> float:
        """Return the cost for a speculator to read a token."""
        tokens, seconds = self._readings(speculator)
        return seconds / tokens

    def reading_of(self, speculators: SpeculatorSet, unread: Mapping[int, int]) -> float:
        """Return the cost of what some speculators have not read."""
        return sum([self.read_s(one) * unread[one] for one in speculators])

    def _readings(self, speculator: int) -> tuple[float, float]:
        usual = _READ_PRIOR, _READ_PRIOR * _READ_PART * self.curve.token_seconds
        return self.reading.get(speculator, usual)

    def outside_pass(self, batch: int, speculators: SpeculatorSet, sizes: Sequence[int]) -> Floats:
        """Return the cost of drafts and of other work, by nodes."""
        size, guess = batch_size_class(batch), _DRAFT_PART * self.curve.at(1)
        for off in _NEAREST:
            if means := self.timed.get((speculators, size + off)):
                timed = sorted(means)
                near = [nearest(timed, nodes) for nodes in sizes]
                scale = [log2(2 + nodes) / log2(2 + at) for nodes, at in zip(sizes, near, strict=True)]
                logs = [means[at].faded(guess, self._step) for at in near]
                return np.exp(logs) * scale * sqrt(2.0**-off)
        return np.full(len(sizes), guess if speculators else 0.0)

    def observe(self, report: StepReport, cold: bool) -> None:
        """Learn from a step; cold: one of the first of its kind in this process."""
        choice, batch, drafts = report.choice, report.batch, report.drafts
        if not report.tokens:
            return
        self._alike = self._alike + 1 if choice.speculators == self._drafted else 0
        self._drafted, before, self._before = choice.speculators, self._before, None
        if cold or (choice.speculators and not (drafts and choice.speculators in self._sets)):
            return
        pace = max(report.pass_s, _MIN_S) / self.curve.at(report.tokens)
        self._paces.append(pace)
        outside_s = report.overhead_s + seconds_of(drafts, choice.speculators)
        if self._observe_reading(report, outside_s / pace):
            return
        if choice.speculators or self._alike >= SETTLING:
            self._add_outside_pass(report, pace)
        if self._alike >= SETTLING:
            row = (choice.speculators, nearest(SIZES, choice.nodes)) if choice.speculators else None
            expected = float(self.outside_pass(batch, choice.speculators, [choice.nodes])[0])
            expected += self.curve.at(report.tokens)
            self._compare(batch, _Timing(row, max(report.pass_s + outside_s, _MIN_S) / expected), before)

    def _observe_reading(self, report: StepReport, outside: float) -> bool:
        """Learn from speculators that read new contexts; return whether any did.

        What the step took longer is divided among them by their own times.
        """
        self._deferred.update({one: draft.read for draft in report.drafts for one in draft.service})
        own_s = {one: s for draft in report.drafts for one, s in draft.own_s.items()}
        read = {one: new for one in own_s if (new := self._deferred.pop(one, 0))}
        choice, all_s = report.choice, max(sum([own_s[one] for one in read]), _MIN_S)
        longer = outside - float(self.outside_pass(report.batch, choice.speculators, [choice.nodes])[0])
        for one in read:
            tokens, seconds = self._readings(one)
            cost = _READ_KEPT * seconds + max(longer, 0.0) * own_s[one] / all_s
            self.reading[one] = _READ_KEPT * tokens + read[one], cost
        return bool(read)

    def _add_outside_pass(self, report: StepReport, pace: float) -> None:
        """Count the seconds of drafts and other work, also for fewer speculators."""
        choice, size = report.choice, batch_size_class(report.batch)
        for one in self._sets if choice.speculators else (PLAIN_SET,):
            if report.shows(one):
                seconds = report.overhead_s + seconds_of(report.drafts, one)
                means = self.timed.setdefault((one, size), {})
                means.setdefault(choice.nodes, RatioMean()).add(seconds / pace, self._step)

    def _compare(self, batch: int, timing: _Timing, before: _Timing | None) -> None:
        """Compare a step with its predecessor and with one of the other kind."""
        if batch != self._batch:
            before = None
            for timings in self._latest.values():
                timings.clear()
        self._batch, self._before = batch, timing
        drafts, factors = timing.row is not None, self.factors(batch)
        if before is not None:
            factors.observe(before.row, timing.row, timing.off / before.off)
        if self._latest[not drafts]:
            other = self._latest[not drafts].pop()
            factors.observe(other.row, timing.row, timing.off / other.off)
        self._latest[drafts].append(timing)


def seconds_of(drafts: Sequence[DraftTime], speculators: SpeculatorSet) -> float:
    """Return the seconds in which some of the speculators draft.

    Services draft in parallel, speculators of one service one after another, residents before all others.
    """
    resident = longest = 0.0
    for draft in drafts:
        if speculators & draft.service:
            seconds = draft.wire_s + sum([s for one, s in draft.own_s.items() if one in speculators])
            if draft.resident:
                resident += seconds
            else:
                longest = max(longest, seconds)
    return resident + longest


def nearest(ordered: Sequence[int], value: float) -> int:
    """Return the item of a sorted sequence that is nearest to a value."""
    at = bisect_left(ordered, value)
    if at and (at == len(ordered) or ordered[at] - value > value - ordered[at - 1]):
        at -= 1
    return ordered[at]
