"""Plan steps by a table of measured tokens and seconds."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import median_low
from typing import NamedTuple

from specinfer.planning.accepted_tokens import AcceptedTokens, Gain
from specinfer.planning.choice import PLAIN, Choice, Reason, SpeculatorSet, batch_size_class, fixed_choice
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import StepReport
from specinfer.planning.step_seconds import StepSeconds
from specinfer.planning.texts import RequestTexts
from specinfer.planning.tree_parts import Shares, ranked_nodes
from specinfer.scheduling.limits import NodeBudget

_FIRST_NODES = 4
"""Maximum nodes of the first trees. Larger trees are tried later."""
_BURST = 3
"""Minimum steps of a trial. The first is untypical: caches are cold."""
_OPTIMISM = 1.0
"""Standard errors by which a row's optimistic tokens exceed its mean."""
_WORTH = 0.01
"""Minimum relative gain of speed that justifies a trial."""
_USUAL_GAIN = 0.3
"""Possible gain of speed below which a trial costs more credit."""
_CREDIT = 3.0
"""Initial credit to pay for trials, in steps of the best row."""
_MAX_CREDIT = 12.0
"""Maximum credit to pay for trials, in steps of the best row."""
_REPEATED = 4
"""Steps for which a choice is valid at constant load."""
_SHARES = 16.0, 128.0, 16.0
"""Steps per earned credit: initially, at most; steps per increase by 1."""
_UNSEEN = 4.0
"""Weight of a size's prior expectation, in trees."""
_DEAREST = 4.0
"""Maximum cost of a trial, as a multiple of the maximum credit."""
_HORIZON = 30.0
"""Maximum cost of a trial in steps, per possible relative gain."""
_COLD = 3
"""First steps, with trees and without, whose times do not count."""
_READ_PART = 0.2
"""Assumed seconds for speculators to read a token, relative to a pass's."""
_READINGS = 5
"""Number of latest readings whose median counts."""
_CAUTION = 0.5
"""Standard errors by which a row must beat the current one."""


class TableRow(NamedTuple):
    """A row of the table for the present step."""

    asked: SpeculatorSet
    nodes: int
    tokens: float
    seconds: float
    time_error: float
    """Relative standard error of the seconds."""
    min_s: float
    """Optimistic seconds."""
    measured: bool
    variance: float
    """Variance of the tokens because trees of these nodes are rarely seen."""

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def speed_at_best(self, best: "TableRow") -> float:
        """Return the optimistic tokens per second."""
        return (self.tokens + _OPTIMISM * self._error(best)) / self.min_s

    def fear(self, best: "TableRow", errors: float) -> float:
        """Return the pessimistic tokens per second, at `errors` standard errors."""
        return (self.tokens - errors * self._error(best)) / (self.seconds * (1 + errors * self.time_error))

    def _error(self, best: "TableRow") -> float:
        """Return the tokens' standard error, without that shared with `best`."""
        common = best.variance if best.asked == self.asked else 0.0
        return sqrt(max(self.variance - common, 0.0))


class TablePlanner:
    """Chooses steps, and learns from their outcomes."""

    def __init__(self, curve: PassCurve, budget: NodeBudget, adaptive: bool = True) -> None:
        self.curve, self.budget, self._adaptive = curve, budget, adaptive
        self.seconds, self.accepted = StepSeconds(curve), AcceptedTokens()
        self._services: Sequence[SpeculatorSet] = ()
        self._shares = Shares(frozenset())
        self.texts = RequestTexts()
        self._step = 0
        self._before: tuple[int, SpeculatorSet, int] | None = None
        """Batch class, speculators and nodes of the previous step."""
        self._choice, self._left, self._load = PLAIN, 0, (0, 0)
        """Current choice, its remaining steps, and its load."""
        self._best: dict[int, tuple[SpeculatorSet, int]] = {}
        """Set and nodes in use by batch class."""
        self._credit, self._earned = _CREDIT, 0
        """Credit to pay for trials, and the step of its last increase."""
        self._ages: dict[int, int] = {}
        """Number of steps so far, by batch class."""
        self._cold = {True: _COLD, False: _COLD}
        """Remaining first steps whose times do not count, with trees and without."""
        self._readings = deque([_READ_PART * curve.token_seconds], maxlen=_READINGS)
        """Seconds for speculators to read a token, without the pace."""

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the pool's speculators, by service."""
        if services != self._services:
            self._services = list(services)
            everybody: SpeculatorSet = frozenset().union(*services)
            if everybody != self._shares.everybody:
                self._shares = Shares(everybody)
            self.seconds.enrol(self._services)

    def choose(self, batch: int, wanting: Mapping[str, int]) -> Choice:
        """Return the choice for the next step.

        Args:
            batch: requests of the step.
            wanting: requests of the batch that want drafts, with the tokens of their contexts.
        """
        if not self._services or not wanting:
            return replace(PLAIN, reason=Reason.NOT_WANTED if self._services else Reason.NO_SPECULATORS)
        if not self._adaptive:
            return fixed_choice(self.budget, self._shares.everybody, batch, len(wanting))
        self.follow(wanting)
        load = batch, len(wanting)
        if not self._left or load != self._load:
            self._choice, self._left = self._plan(*load)
            self._load = load
        self._left -= 1
        if self._choice.speculators:
            self.texts.note_drafts()
        return self._choice

    def _plan(self, batch: int, requests: int) -> tuple[Choice, int]:
        """Return a choice, and the number of steps to use it for."""
        plain, trees = self._rows(batch, requests)
        row, reason, steps = self._pick(batch, plain, trees)
        total = min(row.nodes * requests, self.budget.of_step(batch, requests)) if row.asked else 0
        node_s = 0.0
        if total:
            node_s = self.seconds.pass_seconds(batch + total) - self.seconds.pass_seconds(batch)
        choice = Choice(
            *(row.asked, row.nodes, total, row.tokens, row.seconds, plain.speed),
            node_seconds=max(node_s, 0.0) / max(total, 1),
            reason=reason,
        )
        return choice, steps

    def follow(self, wanting: Mapping[str, int]) -> None:
        """Set the requests that want drafts, with their context lengths."""
        self.texts.follow(wanting)

    def _rows(self, batch: int, requests: int) -> tuple[TableRow, list[TableRow]]:
        size = batch_size_class(batch)
        (plain_s,) = self.seconds.estimate(batch, requests, frozenset(), [0])
        plain = TableRow(frozenset(), 0, float(batch), *plain_s, 0.0)
        max_nodes = self.budget.of_step(batch, requests)
        per_request = min(self.budget.per_request, max_nodes // requests)
        places = per_request.bit_length()
        if not places:
            return plain, []
        sizes = [1 << place for place in range(places)]
        whole = self.gains(self._shares.everybody, size, places)
        reading_s = self._read_s * self.texts.read_per_token
        rows: list[TableRow] = []
        for asked in self._shares.sets:
            gains = self.gains(asked, size, places, whole)
            min_s = plain.seconds
            estimates = self.seconds.estimate(batch, requests, asked, sizes)
            expected = self.expected(asked, size, gains)
            for nodes, (accepted, variance), estimate in zip(sizes, expected, estimates, strict=True):
                tokens = batch + accepted
                min_s = max(min_s, estimate.seconds)
                more_s = min_s + tokens * reading_s - estimate.seconds
                estimate = estimate._replace(
                    seconds=estimate.seconds + more_s, min_seconds=estimate.min_seconds + more_s
                )
                rows.append(TableRow(asked, nodes, tokens, *estimate, variance))
        return plain, rows

    def gains(
        self, asked: SpeculatorSet, size: int, places: int, whole: Sequence[Gain] = ()
    ) -> Sequence[Gain]:
        """Return a speculator set's expected gains for an average request, by size."""
        everybody = self._shares.everybody
        whole = whole or self.accepted.gains(everybody, size, places)
        if asked == everybody:
            return whole
        return self.accepted.gains(asked, size, places, whole, self._shares.share(asked))

    def expected(
        self, asked: SpeculatorSet, size: int, gains: Sequence[Gain]
    ) -> Iterator[tuple[float, float]]:
        """Yield expected accepted tokens and variance of a step for each size.

        Args:
            asked: speculators.
            size: class of the batch.
            gains: gains of usual trees, by size.
        """
        ratios = self.texts.ratios
        tokens = variance = 0.0
        for gain in gains:
            tokens += ratios * gain.tokens
            variance += ratios**2 * (gain.tokens + 0.05) / (gain.trees + _UNSEEN)
            yield tokens, variance

    def _pick(self, batch: int, plain: TableRow, trees: list[TableRow]) -> tuple[TableRow, Reason, int]:
        """Return the best row or a trial, its reason and its steps."""
        size = batch_size_class(batch)
        rows = [plain, *trees]
        known = [row for row in rows if row.measured]
        if not known:
            first = max((row for row in rows if row.nodes <= _FIRST_NODES), key=lambda row: row.speed)
            return first, Reason.FIRST_TREES if first.asked else Reason.FIRST_PLAIN, self._burst(first)
        key = self._best.get(size)
        now = next((row for row in known if (row.asked, row.nodes) == key), None)
        if now is None:
            best = max(known, key=lambda row: row.speed)
        else:
            best = max(known, key=lambda row: row.speed if row is now else row.fear(now, _CAUTION))
        self._best[size] = best.asked, best.nodes
        self._earn(size)
        if not plain.measured:
            return plain, Reason.FIRST_PLAIN, self._burst(plain)
        largest = max([_FIRST_NODES, *(2 * row.nodes for row in known)])
        alternatives = [row for row in rows if row is not best and (row.measured or row.nodes <= largest)]
        trial = max(alternatives, key=lambda row: row.speed_at_best(best), default=None)
        if trial is not None:
            reading = self._reading_steps(trial, best)
            steps = self._burst(trial) + int(reading)
            if self._affordable(batch, trial, best, steps, reading):
                return trial, Reason.PROBE_ALL if trial.asked else Reason.PROBE_PLAIN, steps
        return best, Reason.FASTEST if best.asked else Reason.PLAIN_IS_FASTER, _REPEATED

    def _burst(self, row: TableRow) -> int:
        """Return the minimum steps of a trial."""
        return _BURST + self._cold[bool(row.asked)]

    @property
    def _read_s(self) -> float:
        """Seconds in which speculators read a token now."""
        return median_low(self._readings) * self.seconds.pace

    def _reading_steps(self, trial: TableRow, best: TableRow) -> float:
        """Return the time in which speculators read missed context, in steps.

        A trial lasts so many steps longer: what was read would otherwise be lost.
        """
        if not trial.asked or best.asked:
            return 0.0
        return self.texts.unread * self._read_s / best.seconds

    def _earn(self, size: int) -> None:
        """Add to the credit for the steps since the last plan."""
        first, last, per = _SHARES
        steps, self._earned = self._step - self._earned, self._step
        age = self._ages[size] = self._ages.get(size, 0) + steps
        self._credit = min(self._credit + steps / min(first + age / per, last), _MAX_CREDIT)

    def _affordable(
        self, batch: int, trial: TableRow, best: TableRow, steps: int, reading_steps: float
    ) -> bool:
        """Pay for a trial if it is worth it; return whether."""
        gain = trial.speed_at_best(best) / best.speed - 1
        if gain <= _WORTH:
            return False
        min_seconds = max(trial.fear(best, _OPTIMISM), batch / trial.seconds)
        cost = reading_steps + steps * max(1 - min_seconds / best.speed, 0.0) * trial.seconds / best.seconds
        paid = min(cost * max(1.0, _USUAL_GAIN / gain), _MAX_CREDIT)
        if paid > self._credit or cost > min(_HORIZON * gain, _DEAREST * _MAX_CREDIT):
            return False
        self._credit -= paid
        return True

    def observe(self, report: StepReport) -> None:
        if not self._adaptive:
            return
        choice, batch = report.choice, report.batch
        asked, nodes = choice.speculators, choice.nodes
        self._step += 1
        size = batch_size_class(batch)
        row = size, asked, nodes
        reading = sum([draft.read for draft in report.drafts])
        cold = self._cold[bool(asked)] > 0
        self._cold[bool(asked)] -= cold
        if reading:
            both_s = max([draft.total_s for draft in report.drafts]) / self.seconds.pace
            self._readings.append(max(both_s - self.seconds.drafting(batch, asked, nodes), 0.0) / reading)
        elif row == self._before and not cold and report.tokens:
            resident = sum([draft.total_s for draft in report.drafts if draft.resident])
            remote_s = max([draft.total_s for draft in report.drafts if not draft.resident], default=0.0)
            seconds = report.pass_s + report.overhead_s + resident + remote_s
            self.seconds.observe(report, seconds, self._step)
        self._before = row
        if asked and nodes:
            self.learn_tokens(report)

    def learn_tokens(self, report: StepReport) -> None:
        """Learn from the accepted tokens of a step with trees."""
        asked, size = report.choice.speculators, batch_size_class(report.batch)
        places = report.choice.nodes.bit_length()
        expected = sum([gain.tokens for gain in self.gains(asked, size, places)])
        trees: list[tuple[list[int], float]] = []
        for outcomes, merged in ((report.outcomes, True), (report.chains, False)):
            for name, (tree, path) in outcomes.items():
                forced = tree.forced
                accepted = [node for node in path if node not in forced] if forced else path
                trees.append((ranked_nodes(tree, accepted), self.texts.ratio(name)))
                self.texts.add(name, len(accepted), expected)
                if merged and asked == self._shares.everybody:
                    self._shares.add(tree, accepted)
        self.accepted.add(asked, size, places, trees, self._step)
