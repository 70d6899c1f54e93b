"""Choose each step by expected tokens over expected cost.

The table has a row for plain decoding, and rows for sets of speculators with 1, 2, 3, ... nodes per request.
`TreeGains` counts accepted tokens, `StepCosts` compares costs. Each step runs the best row, or tries a row
that may be better. A credit limits the loss of such trials.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from specinfer.planning.choice import PLAIN, Choice, Reason, SpeculatorSet, batch_size_class, fixed_choice
from specinfer.planning.costs import PLAIN_SET, SETTLING, SIZES, RowKey, StepCosts
from specinfer.planning.gains import TreeGains
from specinfer.planning.memory import PlannerMemory
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import StepReport
from specinfer.scheduling.limits import NodeBudget

_FIRST_NODES = 4
"""Maximum nodes per request of the first trees."""
_PLANNED_STEPS, _MAX_PLANNED_STEPS = 7, 28
"""Steps for which the best row is used before the next comparison, unless the batch changes.

The number doubles while the same row is the best and there is nothing to try.
"""
_TRIAL_STEPS = SETTLING + 3
"""Steps of a trial of other speculators."""
_WARM_UP_STEPS = 3
"""First steps with trees, and without, whose times do not count."""
_FIRST_PAIRS = 3
"""Comparisons of trees with plain decoding, and trials for them, that are made in any case."""
_TIMED_STEPS = 12
"""Number of latest steps between two comparisons that are timed: more would be too slow."""
_KEPT = 1.03
"""Advantage of the speculators in use: a change fills the caches with other weights."""
_MIN_GAIN = 0.01
"""Relative gain that justifies a trial."""
_CREDIT, _MAX_CREDIT = 3.0, 12.0
"""Credit for trials at first and at most, in steps of the best row."""
_EARNED = 1 / 64
"""Credit that a step earns."""


@dataclass(slots=True)
class TableRow:
    """A way to run the next step."""

    speculators: SpeculatorSet
    nodes: int
    tokens: float
    """Expected new tokens of all requests."""
    variance: float
    """Variance of the tokens, from what was not counted yet."""
    seconds: float
    """Expected cost, in seconds of the pass curve."""

    @property
    def key(self) -> RowKey | None:
        """The row in `RowFactors`; None for plain decoding."""
        return (self.speculators, self.nodes) if self.speculators else None

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class TablePlanner:
    """Chooses steps, and learns from their outcomes."""

    def __init__(
        self,
        curve: PassCurve,
        budget: NodeBudget,
        adaptive: bool = True,
        gains: TreeGains | None = None,
        memory: PlannerMemory | None = None,
    ) -> None:
        """Start without knowledge but the curve of passes.

        Args:
            curve: seconds of passes by their tokens.
            budget: maximum nodes of requests and steps.
            adaptive: if False, all speculators always draft what the budget allows.
            gains: counts or predicts accepted tokens.
            memory: keeps what is learned for the next process.
        """
        self.budget, self._adaptive, self._memory = budget, adaptive, memory
        self.costs, self.gains = StepCosts(curve), gains or TreeGains()
        self._services: Sequence[SpeculatorSet] = ()
        self._everybody: SpeculatorSet = frozenset()
        self._choice, self._left, self._load = PLAIN, 0, (0, 0)
        """Current choice, its remaining steps, and (batch, requests that want drafts)."""
        self._best: RowKey | None = None
        """Best row of the latest comparison."""
        self._rest = _TRIAL_STEPS
        """Steps before the next comparison."""
        self._credit = _CREDIT
        self._reports: list[StepReport] = []
        """Finished steps since the last comparison of rows."""
        self._cold = {True: _WARM_UP_STEPS, False: _WARM_UP_STEPS}
        """Remaining warm-up steps, with trees (True) and without (False)."""

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the speculators of each service."""
        if services != self._services:
            self._services, self._left = list(services), 0
            self._everybody = frozenset().union(*services)
            self.gains.enrol(self._everybody)
            self.costs.enrol(self.gains.sets)
            if self._memory is not None and self._everybody:
                self._memory.restore(self._everybody, self.costs, self.gains)

    def choose(self, batch: int, contexts: Mapping[str, int]) -> Choice:
        """Return the choice for the next step.

        Args:
            batch: requests of the step.
            contexts: context tokens of the requests that want drafts, by request id.
        """
        if not self._services or not contexts:
            return replace(PLAIN, reason=Reason.NOT_WANTED if self._services else Reason.NO_SPECULATORS)
        if not self._adaptive:
            return fixed_choice(self.budget, self._everybody, batch, len(contexts))
        if contexts.keys() != self.gains.requests:
            self._learn()
            self._left = 0
        self.gains.follow(contexts)
        load = batch, len(contexts)
        if not self._left or load != self._load:
            self._choice, self._left = self._plan(*load)
            self._load = load
        self._left -= 1
        self._credit = min(self._credit + _EARNED, _MAX_CREDIT)
        if self._choice.speculators:
            self.gains.note_drafts(self._choice.speculators)
        return self._choice

    def _plan(self, batch: int, requests: int) -> tuple[Choice, int]:
        """Return a choice, and the number of steps to use it for."""
        self._learn()
        plain, trees = self._rows(batch, requests)
        kept = self._best[0] if self._best else PLAIN_SET
        best = max([plain, *trees], key=lambda row: row.speed * (_KEPT if row.speculators == kept else 1.0))
        tried = self._choice.reason in (Reason.PROBE_ALL, Reason.PROBE_PLAIN)
        factors = self.costs.factors(batch)
        first = bool(best.speculators) and not tried and factors.plain_pairs < _FIRST_PAIRS
        factors.plain_pairs += first  # a trial that is interrupted compares nothing
        trial = plain if first else None if tried else self._trial(batch, best, [plain, *trees])
        if trial is not None:
            row, steps = trial, _trial_steps(trial, best)
            self._rest = max(steps, _PLANNED_STEPS)
        else:
            same = best.key == self._best
            row, steps = best, self._rest
            self._rest = min(2 * self._rest, _MAX_PLANNED_STEPS) if same else _PLANNED_STEPS
        self._best = best.key
        if trial is None and not self.gains.steady:
            steps = 1
        return self._as_choice(row, plain, batch, requests, trial is not None), steps

    def _as_choice(self, row: TableRow, plain: TableRow, batch: int, requests: int, trial: bool) -> Choice:
        total = min(row.nodes * requests, self.budget.of_step(batch, requests)) if row.speculators else 0
        reasons = {
            (True, True): Reason.PROBE_ALL,
            (True, False): Reason.PROBE_PLAIN,
            (False, True): Reason.FASTEST,
            (False, False): Reason.PLAIN_IS_FASTER,
        }
        pace = self.costs.pace
        node_s = 0.0
        if total:
            node_s = pace * (self.costs.curve.at(batch + total) - self.costs.curve.at(batch)) / total
        return Choice(
            *(row.speculators, row.nodes, total, row.tokens, pace * row.seconds, plain.speed / pace),
            node_seconds=max(node_s, 0.0),
            reason=reasons[trial, bool(row.speculators)],
            batch=batch,
        )

    def _rows(self, batch: int, requests: int) -> tuple[TableRow, list[TableRow]]:
        """Return the row of plain decoding, and those with trees."""
        costs, batch_class = self.costs, batch_size_class(batch)
        plain_s = costs.curve.at(batch) + float(costs.outside_pass(batch, PLAIN_SET, [0])[0])
        plain = TableRow(PLAIN_SET, 0, float(batch), 0.0, plain_s)
        max_nodes = self.budget.of_step(batch, requests)
        largest = max(_FIRST_NODES, 2 * self.gains.largest)
        sizes = bisect_right(SIZES, min(self.budget.per_request, max_nodes // requests, largest))
        if not sizes:
            return plain, []
        factors, unread, left = costs.factors(batch), self.gains.unread(), max(self.gains.left, 1.0)
        rows: list[TableRow] = []
        for speculators in self.gains.sets:
            tokens, variances, nodes = self.gains.expected(speculators, batch_class, sizes)
            tokens = batch + tokens
            passes = np.array([costs.curve.at(batch + requests * each) for each in nodes.tolist()])
            seconds = passes + costs.outside_pass(batch, speculators, SIZES[:sizes])
            seconds = np.maximum.accumulate(seconds * factors.of(speculators, SIZES[:sizes]))
            columns = tokens, variances, seconds + costs.reading_of(speculators, unread) * tokens / left
            for size, *row in zip(SIZES, *[column.tolist() for column in columns], strict=False):
                rows.append(TableRow(speculators, size, *row))
        return plain, rows

    def _trial(self, batch: int, best: TableRow, rows: Sequence[TableRow]) -> TableRow | None:
        """Return a row to try, if any may be better and the credit pays for it."""
        unread = self.gains.unread()
        chosen, promise = None, 1 + _MIN_GAIN
        for row in rows:
            if row is best:
                continue
            hope = self._hope(batch, row, best)
            loss = max(1 - row.speed / best.speed, 0.0) * row.seconds / best.seconds
            loss *= _trial_steps(row, best)
            loss += self.costs.reading_of(row.speculators - best.speculators, unread) / best.seconds
            price = min(loss, _MAX_CREDIT)
            if hope > promise and price <= self._credit:
                chosen, promise, paid = row, hope, price
        if chosen is not None:
            self._credit -= paid
        return chosen

    def _hope(self, batch: int, row: TableRow, best: TableRow) -> float:
        """Return the speed over the best row's, one standard error above what is expected."""
        common = best.variance if best.speculators == row.speculators else 0.0
        tokens = sqrt(abs(row.variance - common)) / row.tokens
        factors = self.costs.factors(batch).error(row.key, best.key)
        return row.speed / best.speed * (1 + sqrt(tokens**2 + factors**2))

    def close(self) -> None:
        """Keep what was learned; call at the end."""
        if self._memory is not None and self._everybody and self.gains.counts:
            self._learn()
            self._memory.keep(self._everybody, self.costs, self.gains)

    def observe(self, report: StepReport) -> None:
        """Note a step, to learn from it before the next comparison of rows."""
        if self._adaptive:
            self._reports.append(report)
            if len(self._reports) > _MAX_PLANNED_STEPS:
                self._learn()

    def _learn(self) -> None:
        """Learn from the steps since the last comparison: together, this takes a third of the time."""
        reports, self._reports = self._reports, []  # first, as a report that fails must not fail again
        for report in reports[-_TIMED_STEPS:]:
            trees = bool(report.choice.speculators)
            self.costs.observe(report, cold=self._cold[trees] > 0)
            self._cold[trees] = max(self._cold[trees] - 1, 0)
        self.gains.observe(reports)
        if reports:
            self.costs.age(reports[-1].batch, len(reports))


def _trial_steps(row: TableRow, best: TableRow) -> int:
    """Return the steps of a trial: the first ones of other speculators are not timed."""
    return 1 if row.speculators == best.speculators else _TRIAL_STEPS
