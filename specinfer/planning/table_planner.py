"""Plan steps by a table of measured tokens and seconds.

The table has a row for plain decoding, and a row for each speculator set with 1, 2, 4, ... nodes per request.
A row predicts the new tokens and the seconds of a step. The planner uses the row with the most tokens per
second, and runs trials of other rows while `TrialCredit` can pay for them.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from specinfer.planning.accepted_tokens import AcceptedTokens, Gain
from specinfer.planning.choice import PLAIN, Choice, Reason, SpeculatorSet, batch_size_class, fixed_choice
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import StepReport
from specinfer.planning.step_seconds import StepSeconds
from specinfer.planning.texts import RequestTexts
from specinfer.planning.tree_parts import Shares, ranked_nodes
from specinfer.planning.trials import TableRow, TrialCredit
from specinfer.scheduling.limits import NodeBudget

_FIRST_NODES = 4
"""Maximum nodes per request of the first trees."""
_TRIAL_STEPS = 3
"""Minimum steps of a trial; the first is not timed."""
_PLANNED_STEPS = 4
"""Steps before the next plan, unless the batch changes."""
_PRIOR_TREES = 4.0
"""Trees added to the observed trees, for the variance of gains."""
_WARM_UP_STEPS = 3
"""First steps with trees, and without, whose times do not count."""
_READ_PART = 0.2
"""Assumed reading time of speculators per token, relative to the target's."""
_READINGS = 5
"""Number of latest reading times whose median counts."""
_CAUTION = 0.5
"""Standard errors by which a faster row replaces the current row."""


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
        """Batch class, speculator set and nodes of the previous step."""
        self._choice, self._left, self._load = PLAIN, 0, (0, 0)
        """Current choice, its remaining steps, and (batch, requests that want drafts)."""
        self._best: dict[int, tuple[SpeculatorSet, int]] = {}
        """Speculator set and nodes of the row in use, by batch class."""
        self._credit = TrialCredit()
        self._cold = {True: _WARM_UP_STEPS, False: _WARM_UP_STEPS}
        """Remaining warm-up steps, with trees (True) and without (False)."""
        self._readings = deque([_READ_PART * curve.token_seconds], maxlen=_READINGS)
        """Speculators' seconds per context token read, at pace 1."""

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the speculators of each service."""
        if services != self._services:
            self._services = list(services)
            everybody: SpeculatorSet = frozenset().union(*services)
            if everybody != self._shares.everybody:
                self._shares = Shares(everybody)
            self.seconds.enrol(self._services)

    def choose(self, batch: int, contexts: Mapping[str, int]) -> Choice:
        """Return the choice for the next step.

        Args:
            batch: requests of the step.
            contexts: context tokens of the requests that want drafts, by request id.
        """
        if not self._services or not contexts:
            return replace(PLAIN, reason=Reason.NOT_WANTED if self._services else Reason.NO_SPECULATORS)
        if not self._adaptive:
            return fixed_choice(self.budget, self._shares.everybody, batch, len(contexts))
        self.follow(contexts)
        load = batch, len(contexts)
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
        total = min(row.nodes * requests, self.budget.of_step(batch, requests)) if row.speculators else 0
        node_s = 0.0
        if total:
            node_s = self.seconds.pass_seconds(batch + total) - self.seconds.pass_seconds(batch)
        choice = Choice(
            *(row.speculators, row.nodes, total, row.tokens, row.seconds, plain.speed),
            node_seconds=max(node_s, 0.0) / max(total, 1),
            reason=reason,
        )
        return choice, steps

    def follow(self, contexts: Mapping[str, int]) -> None:
        """Set the context tokens of the requests that want drafts."""
        self.texts.follow(contexts)

    def _rows(self, batch: int, requests: int) -> tuple[TableRow, list[TableRow]]:
        batch_class = batch_size_class(batch)
        (plain_s,) = self.seconds.estimate(batch, requests, frozenset(), [0])
        plain = TableRow(frozenset(), 0, float(batch), *plain_s, 0.0)
        max_nodes = self.budget.of_step(batch, requests)
        per_request = min(self.budget.per_request, max_nodes // requests)
        num_sizes = per_request.bit_length()
        if not num_sizes:
            return plain, []
        sizes = [1 << exponent for exponent in range(num_sizes)]
        whole = self.gains(self._shares.everybody, batch_class, num_sizes)
        reading_s = self._read_s * self.texts.read_per_token
        rows: list[TableRow] = []
        for speculators in self._shares.sets:
            gains = self.gains(speculators, batch_class, num_sizes, whole)
            min_s = plain.seconds
            estimates = self.seconds.estimate(batch, requests, speculators, sizes)
            expected = self.expected(speculators, batch_class, gains)
            for nodes, (accepted, variance), estimate in zip(sizes, expected, estimates, strict=True):
                tokens = batch + accepted
                min_s = max(min_s, estimate.seconds)
                more_s = min_s + tokens * reading_s - estimate.seconds
                estimate = estimate._replace(
                    seconds=estimate.seconds + more_s, min_seconds=estimate.min_seconds + more_s
                )
                rows.append(TableRow(speculators, nodes, tokens, *estimate, variance))
        return plain, rows

    def gains(
        self, speculators: SpeculatorSet, batch_class: int, num_sizes: int, whole: Sequence[Gain] = ()
    ) -> Sequence[Gain]:
        """Return a speculator set's gains for an average request.

        Item k is the gain of `2**k` nodes.
        """
        everybody = self._shares.everybody
        whole = whole or self.accepted.gains(everybody, batch_class, num_sizes)
        if speculators == everybody:
            return whole
        return self.accepted.gains(
            speculators, batch_class, num_sizes, whole, self._shares.share(speculators)
        )

    def expected(
        self, speculators: SpeculatorSet, batch_class: int, gains: Sequence[Gain]
    ) -> Iterator[tuple[float, float]]:
        """Yield a step's accepted tokens and their variance.

        The values are for 1, 2, 4, ... nodes per request.

        Args:
            speculators: speculator set.
            batch_class: class of the batch size.
            gains: gains of an average request, for 1, 2, 4, ... nodes.
        """
        ratios = self.texts.ratios
        tokens = variance = 0.0
        for gain in gains:
            tokens += ratios * gain.tokens
            variance += ratios**2 * (gain.tokens + 0.05) / (gain.trees + _PRIOR_TREES)
            yield tokens, variance

    def _pick(self, batch: int, plain: TableRow, trees: list[TableRow]) -> tuple[TableRow, Reason, int]:
        """Return the row to run, the reason, and for how many steps."""
        batch_class = batch_size_class(batch)
        rows = [plain, *trees]
        known = [row for row in rows if row.measured]
        if not known:
            first = max((row for row in rows if row.nodes <= _FIRST_NODES), key=lambda row: row.speed)
            return (
                first,
                Reason.FIRST_TREES if first.speculators else Reason.FIRST_PLAIN,
                self._trial_steps(first),
            )
        key = self._best.get(batch_class)
        now = next((row for row in known if (row.speculators, row.nodes) == key), None)
        if now is None:
            best = max(known, key=lambda row: row.speed)
        else:
            best = max(known, key=lambda row: row.speed if row is now else row.cautious_speed(now, _CAUTION))
        self._best[batch_class] = best.speculators, best.nodes
        self._credit.earn(batch_class, self._step)
        if not plain.measured:
            return plain, Reason.FIRST_PLAIN, self._trial_steps(plain)
        largest = max([_FIRST_NODES, *(2 * row.nodes for row in known)])
        alternatives = [row for row in rows if row is not best and (row.measured or row.nodes <= largest)]
        trial = max(alternatives, key=lambda row: row.optimistic_speed(best), default=None)
        if trial is not None:
            reading = self._reading_steps(trial, best)
            steps = self._trial_steps(trial) + int(reading)
            if self._credit.pay(trial, best, batch, steps, reading):
                return trial, Reason.PROBE_ALL if trial.speculators else Reason.PROBE_PLAIN, steps
        return best, Reason.FASTEST if best.speculators else Reason.PLAIN_IS_FASTER, _PLANNED_STEPS

    def _trial_steps(self, row: TableRow) -> int:
        """Return the minimum steps of a trial."""
        return _TRIAL_STEPS + self._cold[bool(row.speculators)]

    @property
    def _read_s(self) -> float:
        """Speculators' seconds per context token read, at the current pace."""
        return median_low(self._readings) * self.seconds.pace

    def _reading_steps(self, trial: TableRow, best: TableRow) -> float:
        """Return the time to read missed context, in steps of `best`.

        A trial lasts these steps longer, as reading is worth its time only if drafts follow.
        """
        if not trial.speculators or best.speculators:
            return 0.0
        return self.texts.unread * self._read_s / best.seconds

    def observe(self, report: StepReport) -> None:
        if not self._adaptive:
            return
        choice, batch = report.choice, report.batch
        speculators, nodes = choice.speculators, choice.nodes
        self._step += 1
        batch_class = batch_size_class(batch)
        row = batch_class, speculators, nodes
        reading = sum([draft.read for draft in report.drafts])
        cold = self._cold[bool(speculators)] > 0
        self._cold[bool(speculators)] -= cold
        if reading:
            both_s = max([draft.total_s for draft in report.drafts]) / self.seconds.pace
            self._readings.append(
                max(both_s - self.seconds.drafting(batch, speculators, nodes), 0.0) / reading
            )
        elif row == self._before and not cold and report.tokens:
            resident = sum([draft.total_s for draft in report.drafts if draft.resident])
            remote_s = max([draft.total_s for draft in report.drafts if not draft.resident], default=0.0)
            seconds = report.pass_s + report.overhead_s + resident + remote_s
            self.seconds.observe(report, seconds, self._step)
        self._before = row
        if speculators and nodes:
            self.learn_tokens(report)

    def learn_tokens(self, report: StepReport) -> None:
        """Learn from the accepted tokens of a step with trees."""
        speculators, batch_class = report.choice.speculators, batch_size_class(report.batch)
        num_sizes = report.choice.nodes.bit_length()
        expected = sum([gain.tokens for gain in self.gains(speculators, batch_class, num_sizes)])
        trees: list[tuple[list[int], float]] = []
        for outcomes, merged in ((report.outcomes, True), (report.chains, False)):
            for name, (tree, path) in outcomes.items():
                forced = tree.forced
                accepted = [node for node in path if node not in forced] if forced else path
                trees.append((ranked_nodes(tree, accepted), self.texts.ratio(name)))
                self.texts.add(name, len(accepted), expected)
                if merged and speculators == self._shares.everybody:
                    self._shares.add(tree, accepted)
        self.accepted.add(speculators, batch_class, num_sizes, trees, self._step)
