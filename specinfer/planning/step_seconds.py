"""Measure seconds of steps, or estimate them from passes and drafts. Pure.

A row is (batch class, speculator set, nodes). The machine's pace is the seconds of the latest passes, divided
by the seconds of the pass curve, which was measured at start. Seconds of rows are stored divided by the pace.
So the estimate of a row that is not run follows the machine's speed and cannot drift.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from math import log2, sqrt
from statistics import median
from typing import NamedTuple

from specinfer.planning.choice import SpeculatorSet, batch_size_class
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import StepReport

_WINDOW = 24
"""Number of latest steps of a row in its mean."""
_HALF = 400.0
"""Steps without a value after which a row's certainty is halved."""
_FEW = 5
"""Number of values below which the minimum replaces the median."""
_MISSING = 4
"""Number of new values after which a mean is computed again."""
_CLIP = 0.4
"""Maximum relative difference from the median; larger differences are disturbances."""
_PASSES = 5
"""Number of latest passes whose median is the pace."""
_DRAFT_PART = 0.25
"""Assumed seconds of an unmeasured draft, relative to a one-token pass."""
_NOISE = 0.1
"""Relative standard error of one measured step."""
_GUESS = 0.2
"""Relative standard error of the estimate for a row without measured steps."""
_TRUSTED = 1000.0
"""Steps without a value after which a row is uncertain.

The planner then assumes that the row may take half its seconds. A new value removes all old values but the
latest, as old values may have been disturbed.
"""
_MIN_S = 1e-6


class Estimate(NamedTuple):
    """Expected seconds of one step of a row, with their error."""

    seconds: float
    error: float
    """Relative standard error."""
    min_seconds: float
    """Optimistic seconds: reduced by the error and by the row's age."""
    measured: bool


class RowSeconds:
    """Mean seconds of a row's latest steps.

    A value is the sum of a known part, such as the curve's seconds for the pass, and a measured rest. Only the
    rest is clipped, so that steps with large passes count in full and disturbances count little.
    """

    __slots__ = ("_known", "_new", "_rest", "_values", "batch")

    def __init__(self) -> None:
        self._values = deque[tuple[float, float, int]](maxlen=_WINDOW)
        """(Seconds without the known part, known part, step number) of each value."""
        self._rest = self._known = 0.0
        self._new = 0
        self.batch = 1
        """Batch size of the first step."""

    def __len__(self) -> int:
        """Return the number of values that count."""
        return len(self._values)

    def add(self, value: float, step: int, known: float = 0.0) -> None:
        """Add a value in seconds; `known` is its known part."""
        values = self._values
        if values and self.age_at(step) > _TRUSTED:
            while len(values) > 1:
                values.popleft()
        values.append((value - known, known, step))
        self._new += 1

    @property
    def rest(self) -> float:
        """Mean of the measured rest; the newest three values may be missing."""
        if self._new >= _MISSING or (self._new and len(self._values) <= _FEW):
            rests = sorted([rest for rest, _, _ in self._values])
            self._known = sum([known for _, known, _ in self._values]) / len(rests)
            middle = rests[len(rests) // 2] if len(rests) >= _FEW else rests[0]
            wide = _CLIP * (abs(middle) + self._known)
            low, high = middle - wide, middle + wide
            first, last = bisect_left(rests, low), bisect_right(rests, high)
            clipped = low * first + sum(rests[first:last]) + high * (len(rests) - last)
            self._rest = clipped / len(rests)
            self._new = 0
        return self._rest

    @property
    def value(self) -> float:
        """Mean seconds, measured and known part together."""
        return self.rest + self._known

    def weight_at(self, step: int) -> float:
        """Return the number of values, halved every `_HALF` steps without one."""
        return len(self._values) * float(0.5 ** (self.age_at(step) / _HALF))

    def age_at(self, step: int) -> int:
        """Return the steps since the latest value."""
        return step - self._values[-1][2]


class StepSeconds:
    """Measures the seconds of rows, drafts and messages."""

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self._ratios = deque([1.0], maxlen=_PASSES)
        """Seconds of the latest passes, divided by the curve's."""
        self._rows: dict[tuple[int, SpeculatorSet], dict[int, RowSeconds]] = {}
        """Rows by (batch class, speculator set), then by nodes."""
        self._drafts: dict[object, dict[tuple[int, int], RowSeconds]] = {}
        """Seconds of speculators, and of messages by service.

        The second key is (batch, nodes).
        """
        self._services: Sequence[SpeculatorSet] = ()
        self._step = 0

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the speculators of each service."""
        self._services = services

    @property
    def pace(self) -> float:
        """Seconds of the latest passes, divided by the curve's: the median."""
        return median(self._ratios)

    def observe(self, report: StepReport, seconds: float, step: int) -> None:
        """Add a step of `seconds` seconds in which speculators read no prompt."""
        self._step = step
        batch, speculators, nodes = report.batch, report.choice.speculators, report.choice.nodes
        self._ratios.append(max(report.pass_s, _MIN_S) / self._curve.at(report.tokens))
        row = self._rows.setdefault((batch_size_class(batch), speculators), {}).setdefault(
            nodes, RowSeconds()
        )
        if not len(row):
            row.batch = batch
        pace = self.pace
        scale = self._curve.at(row.batch) / self._curve.at(batch)
        row.add(scale * max(seconds, _MIN_S) / pace, step, scale * self._curve.at(report.tokens))
        for draft in report.drafts:
            for key, draft_s in ((draft.service, draft.wire_s), *draft.own_s.items()):
                rows = self._drafts.setdefault(key, {})
                rows.setdefault((batch, nodes), RowSeconds()).add(draft_s / pace, step)

    def estimate(
        self, batch: int, requests: int, speculators: SpeculatorSet, sizes: Sequence[int]
    ) -> list[Estimate]:
        """Estimate seconds of a step for each number of nodes in `sizes`.

        `sizes` must rise.
        """
        pace, rows = self.pace, self._rows.get((batch_size_class(batch), speculators), {})
        estimates: list[Estimate] = []
        for nodes in sizes:
            row = rows.get(nodes)
            if row is None:
                seconds, error = self._guess(batch, requests, speculators, nodes, rows)
                estimates.append(Estimate(pace * seconds, error, pace * seconds * (1 - error), False))
                continue
            seconds = row.value * self._curve.at(batch) / self._curve.at(row.batch)
            error = min(_NOISE / sqrt(row.weight_at(self._step)), _GUESS)
            min_seconds = seconds * (1 - error) * 0.5 ** (row.age_at(self._step) / _TRUSTED)
            estimates.append(Estimate(pace * seconds, error, pace * min_seconds, len(row) >= 2))
        return estimates

    def _guess(
        self,
        batch: int,
        requests: int,
        speculators: SpeculatorSet,
        nodes: int,
        rows: Mapping[int, RowSeconds],
    ) -> tuple[float, float]:
        """Estimate an unmeasured row from measured rows of its set."""
        shape = self._shape(batch, requests, speculators, nodes)
        plain = self._rows.get((batch_size_class(batch), frozenset()), {})
        rows = {**plain, **rows} if nodes else rows
        less = max((n for n in rows if n < nodes), default=None)
        more = min((n for n in rows if n > nodes), default=None)
        if less is not None and more is not None:
            first, last = (self._shape(batch, requests, speculators, n) for n in (less, more))
            if last > first:
                part = (shape - first) / (last - first)
                return rows[less].value * (1 - part) + rows[more].value * part, _GUESS / 2
        near = less if less is not None else more
        if near is None:
            return max(shape + self._rest(batch), shape / 2), _GUESS
        rest = rows[near].value - self._shape(batch, requests, speculators, near)
        return max(shape + rest, shape / 2), _GUESS

    def pass_seconds(self, tokens: float) -> float:
        """Return the expected seconds of a pass."""
        return self.pace * self._curve.at(tokens)

    def _rest(self, batch: int) -> float:
        """Return the seconds of a step outside passes and drafts.

        They are those of the row with the most values in the nearest batch class.
        """
        size = batch_size_class(batch)
        if not self._rows:
            return 0.0
        nearest = min(abs(key[0] - size) for key in self._rows)
        _, key, nodes, row = max(
            (len(row), key, nodes, row)
            for key, rows in self._rows.items()
            if abs(key[0] - size) == nearest
            for nodes, row in rows.items()
        )
        return row.value - self._shape(row.batch, row.batch, key[1], nodes)

    def _shape(self, batch: int, requests: int, speculators: SpeculatorSet, nodes: int) -> float:
        """Return the seconds of pass and drafts at pace 1."""
        return self._curve.at(batch + nodes * requests) + self.drafting(batch, speculators, nodes)

    def drafting(self, batch: int, speculators: SpeculatorSet, nodes: int) -> float:
        """Return the seconds of drafting.

        Services draft in parallel; speculators of one service draft one after another.
        """
        if not speculators or not nodes:
            return 0.0
        longest = 0.0
        for service in self._services:
            drafting = speculators & service
            if not drafting:
                continue
            parts = [self._part(key, batch, nodes) for key in (service, *drafting)]
            known = [part for part in parts if part is not None]
            longest = max(longest, sum(known) if known else _DRAFT_PART * self._curve.at(1))
        return longest

    def _part(self, key: object, batch: int, nodes: int) -> float | None:
        """Return the seconds stored in `_drafts` for a key, interpolated."""
        drafts = self._drafts.get(key)
        if not drafts:
            return None
        b, n = min(drafts, key=lambda at: (abs(log2(at[0] / batch)), abs(log2(at[1] / nodes))))
        value = drafts[b, n].value
        return value * sqrt(batch / b) * log2(1 + nodes) / log2(1 + n)
