"""The planner: per step, which speculators are asked and how many nodes are verified. Pure: told, never asks.

    tokens(S, n)  = batch + accepted(S, n)         the acceptance model: measured (`acceptance`) or learned
    seconds(S, n) = rest + slowest service of S with n + pass(batch + kept(n))   the latency model (`latency`)
    choice        = the speculator set S and the nodes n of each request with the most tokens per second

    node threshold = tokens(S, n) / seconds(S, n) * (pass(n) - pass(0)) / n

All of it is measured while serving, n being 1, 2, 4, ... and the most that is allowed. Plain decoding is the
empty set. Of all that is drafted, at most n nodes a request are verified, the most probable ones of the whole
batch, as long as they bring tokens at least as fast as the step does: a node whose path probability is below
the threshold costs more time than its chance is worth. (A price of its own for every node, in passes that
grow in stairs, brings nothing: docs/findings.md#flat-price.) What is not chosen teaches nothing, so now and
then a step tries something else (`trials`).

What is chosen depends on committed tokens, earlier steps and time only, so it never biases the output.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specinfer.planning.acceptance import AcceptanceModel, Outcomes
from specinfer.planning.by_nodes import sizes_up_to
from specinfer.planning.latency import DraftTime, LatencyModel, SpeculatorSet
from specinfer.planning.pass_times import PassCurve
from specinfer.planning.trials import Option, Trials
from specinfer.scheduling.limits import NodeBudget


@dataclass(frozen=True, slots=True)
class Choice:
    """What one step does, and why."""

    speculators: SpeculatorSet = frozenset()
    nodes: int = 0
    """Most nodes drafted per request; 0 with no speculators is plain decoding."""
    step_nodes: int = 0
    """Most nodes verified in the step."""
    tokens: float = 0.0
    """Expected."""
    seconds: float = 0.0
    """Expected."""
    plain_speed: float = 0.0
    """Tokens per second expected of plain decoding."""
    node_seconds: float = 0.0
    """What a node adds to the pass, on average."""
    reason: str = "no speculators"

    @property
    def speed(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def node_threshold(self) -> float:
        """Least path probability at which a node pays; speculators need not go on below it either."""
        return min(max(self.speed, self.plain_speed) * self.node_seconds, 1.0)

    def keeps(self, kept: int, path_probability: float) -> bool:
        """Whether one more node is verified, given how many are and its path probability."""
        return kept < self.step_nodes and path_probability >= self.node_threshold


PLAIN = Choice()


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and how long it took."""

    choice: Choice
    batch: int
    tokens: int
    """Tokens in the target's pass."""
    pass_s: float
    drafts: Sequence[DraftTime]
    """Of every service that answered in time."""
    overhead_s: float
    """All the rest: from the end of the step before, if there was no pause, to the end of this one."""
    outcomes: Outcomes
    """Of the requests that had merged trees."""
    chains: Outcomes = field(default_factory=dict)
    """Of the requests that had one speculator's chain."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the requests when the step began."""


class Planner:
    """Chooses, and learns from what came of it."""

    def __init__(
        self,
        curve: PassCurve,
        budget: NodeBudget,
        adaptive: bool = True,
        acceptance: AcceptanceModel | None = None,
    ) -> None:
        """`acceptance`: what predicts accepted tokens; None: the measured policy."""
        self._budget, self._adaptive = budget, adaptive
        self.latency, self.acceptance = LatencyModel(curve), acceptance or AcceptanceModel()
        self._services: Sequence[SpeculatorSet] = ()
        self._trials = Trials()

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """From now on the pool has these speculators, by service: those of one draft one after another."""
        if services != self._services:
            self._services = services
            self.acceptance.enrol(frozenset().union(*services))

    def choose(self, batch: int, wanting: Mapping[str, int]) -> Choice:
        """What the next step does for a batch of this size.

        Args:
            wanting: the requests of it that want drafts, with the tokens of their contexts.
        """
        if not self._services or not wanting:
            return replace(PLAIN, reason="no request wants drafts" if self._services else "no speculators")
        if not self._adaptive:
            return self._fixed(batch, len(wanting))
        self.acceptance.follow(wanting)
        self.latency.reading.follow(wanting)
        choice = self._choose(batch, len(wanting))
        self.acceptance.chosen(choice.speculators, choice.nodes)
        if choice.speculators:
            self.latency.reading.asked()
        return choice

    def observe(self, report: StepReport) -> None:
        """Learns from a step."""
        if not self._adaptive:
            return
        choice, batch = report.choice, report.batch
        asked, nodes = choice.speculators, choice.nodes
        warm = True
        if report.drafts or not asked:
            times = report.tokens, report.pass_s, report.drafts, report.overhead_s
            warm = self.latency.observe(batch, nodes, *times)
        else:  # late: not what steps usually take
            self.latency.observe_pass(batch, report.tokens, report.pass_s)
        if warm:
            self._trials.count(batch, asked, nodes)
        if asked:
            self.acceptance.observe(batch, asked, nodes, report.outcomes, contexts=report.contexts)
            self.acceptance.observe(batch, asked, nodes, report.chains, merged=False)

    def _choose(self, batch: int, requests: int) -> Choice:
        """What promises most, or a trial of something else."""
        most = self._budget.of_step(batch, requests)
        plain_pass_s = self.latency.passes.seconds(batch)
        (rest_s,) = self.latency.seconds_before_pass(batch)
        seconds = plain_pass_s + rest_s
        plain = Option(PLAIN.speculators, 0, float(batch), seconds, plain_pass_s, 0.0, batch / seconds)
        trees = list(self._trees(batch, requests, most))
        behind_s = self.latency.seconds_to_catch_up(self._services)
        option, reason = self._trials.pick(batch, plain, trees, self.acceptance.everybody, behind_s)
        total = min(option.nodes * requests, most)
        return Choice(
            option.asked,
            option.nodes,
            total,
            option.tokens,
            option.seconds,
            plain.speed,
            max(option.pass_s - plain_pass_s, 0.0) / max(option.kept, 1e-3) if option.asked else 0.0,
            reason,
        )

    def _trees(self, batch: int, requests: int, most: int) -> Iterator[Option]:
        """Every speculator set and number of nodes, with what to expect of it."""
        each = min(self._budget.per_request, max(most // requests, min(most, 1)))
        sizes = sizes_up_to(each)
        by_set, kept = self.acceptance.expect(batch, sizes)
        in_step = [min(requests * share, most) for share in kept]
        passes = [self.latency.passes.seconds(batch + nodes) for nodes in in_step]
        for asked, accepted in by_set.items():
            before = self.latency.seconds_before_pass(batch, asked, self._services, sizes)
            expected = zip(sizes, accepted, in_step, passes, before, strict=True)
            for nodes, brought, kept_nodes, pass_s, before_s in expected:
                tokens, seconds = batch + brought, before_s + pass_s
                yield Option(asked, nodes, tokens, seconds, pass_s, kept_nodes, tokens / seconds)

    def _fixed(self, batch: int, requests: int) -> Choice:
        """Everybody, and as many nodes as the budget allows."""
        most = self._budget.of_step(batch, requests)
        nodes = min(self._budget.per_request, max(1, most // requests))
        return Choice(self.acceptance.everybody, nodes, most, reason="not adaptive")
