"""The planner: the choice of speculators and nodes that promises most tokens per second."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from specinfer.planning.acceptance import AcceptanceModel, Outcomes
from specinfer.planning.by_nodes import sizes_up_to
from specinfer.planning.latency import DraftTime, LatencyModel, SpeculatorSet
from specinfer.planning.pass_times import PassCurve
from specinfer.planning.trials import Option, Reason, Trials
from specinfer.scheduling.limits import NodeBudget


def derive_budget(
    curve: PassCurve,
    max_batch: int,
    max_tree_nodes: int,
    max_step_tokens: int,
    per_request: int = 0,
    per_step: int = 0,
) -> NodeBudget:
    """Return the budget with which passes bring most tokens per second in a very predictable text.

    In such a text a token is accepted with every doubling, twice what is usual; all but the pass is taken to
    last as long as a pass without trees.

    Args:
        curve: seconds of passes by their tokens.
        max_batch: most requests of a step.
        max_tree_nodes: most nodes of one tree that the verifier accepts.
        max_step_tokens: most tokens of a step that it accepts.
        per_request: the operator's nodes of a request; 0 derives them.
        per_step: the operator's nodes of a step; 0 derives them.
    """
    if not per_request:
        per_request = _best(curve, 1, min(max_tree_nodes, max_step_tokens - 1))
    per_request = min(per_request, max_tree_nodes)
    if not per_step:
        batches = [1 << i for i in range(max_batch.bit_length())] + [max_batch]
        most = [(b, min(b * per_request, max_step_tokens - b)) for b in batches if b <= max_batch]
        per_step = max([per_request, *(_best(curve, b, nodes) for b, nodes in most if nodes > 0)])
    return NodeBudget(per_request, per_step, max_step_tokens)


def _best(curve: PassCurve, batch: int, most: int) -> int:
    tokens = batch * (1 + np.log2(1 + np.arange(most + 1) / batch))
    seconds = curve.at(batch) + curve.between(batch, batch + most)
    return int(np.argmax(tokens / seconds))


@dataclass(frozen=True, slots=True)
class Choice:
    """Plan of one step, and its reason."""

    speculators: SpeculatorSet = frozenset()
    nodes: int = 0
    """Most nodes drafted per request; 0 with no speculators is plain decoding."""
    step_nodes: int = 0
    """Most nodes verified in the step."""
    tokens: float = 0.0
    """Expected tokens."""
    seconds: float = 0.0
    """Expected seconds."""
    plain_speed: float = 0.0
    """Tokens per second expected of plain decoding."""
    node_seconds: float = 0.0
    """Seconds that a node adds to the pass, on average."""
    reason: Reason = Reason.NO_SPECULATORS

    @property
    def speed(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def node_threshold(self) -> float:
        """Least path probability at which a node pays; speculators need not go on below it either."""
        return min(max(self.speed, self.plain_speed) * self.node_seconds, 1.0)

    def keeps(self, kept: int, path_probability: float) -> bool:
        """Return whether one more node is verified, given how many are and its path probability."""
        return kept < self.step_nodes and path_probability >= self.node_threshold


PLAIN = Choice()


@dataclass(frozen=True, slots=True)
class StepReport:
    """Work and times of one step."""

    choice: Choice
    batch: int
    tokens: int
    """Tokens in the target's pass."""
    pass_s: float
    drafts: Sequence[DraftTime]
    """Times of every service that answered in time."""
    overhead_s: float
    """Seconds of all the rest: from the end of the step before, if there was no pause, to the end of this
    one."""
    outcomes: Outcomes
    """Outcomes of the requests that had merged trees."""
    chains: Outcomes = field(default_factory=dict)
    """Outcomes of the requests that had one speculator's chain."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the requests when the step began."""
    seconds: float = 0.0
    """Seconds of the whole step, drafts for the next one included."""

    @property
    def brought(self) -> int:
        """Tokens of all requests."""
        outcomes = (*self.outcomes.values(), *self.chains.values())
        return self.batch + sum([len(accepted) for _, accepted in outcomes])


def fixed_choice(budget: NodeBudget, everybody: SpeculatorSet, batch: int, requests: int) -> Choice:
    """Return all speculators, and as many nodes as the budget allows."""
    most = budget.of_step(batch, requests)
    nodes = min(budget.per_request, max(1, most // requests))
    return Choice(everybody, nodes, most, reason=Reason.NOT_ADAPTIVE)


class StepPlanner(Protocol):
    """Chooses steps, and learns from their outcomes."""

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the pool's speculators, by service: those of one draft one after another."""

    def choose(self, batch: int, wanting: Mapping[str, int]) -> Choice:
        """Return the choice for the next step of a batch.

        Args:
            batch: requests of the step.
            wanting: requests of the batch that want drafts, with the tokens of their contexts.
        """

    def observe(self, report: StepReport) -> None:
        """Learn from a step."""


class Planner:
    """The planner by a model of the parts of a step; the learned policy predicts its acceptance."""

    def __init__(
        self,
        curve: PassCurve,
        budget: NodeBudget,
        adaptive: bool = True,
        acceptance: AcceptanceModel | None = None,
    ) -> None:
        """Create a planner.

        Args:
            curve: seconds of passes by their tokens.
            budget: most nodes of requests and steps.
            adaptive: whether it chooses; else all speculators draft what the budget allows.
            acceptance: predicts accepted tokens; None is the measured policy.
        """
        self._budget, self._adaptive = budget, adaptive
        self.latency, self.acceptance = LatencyModel(curve), acceptance or AcceptanceModel()
        self._services: Sequence[SpeculatorSet] = ()
        self._trials = Trials()

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the pool's speculators, by service: those of one draft one after another."""
        if services != self._services:
            self._services = services
            self.acceptance.enrol(frozenset().union(*services))

    def choose(self, batch: int, wanting: Mapping[str, int]) -> Choice:
        """Return the choice for the next step of a batch of this size.

        Args:
            batch: requests of the step.
            wanting: requests of the batch that want drafts, with the tokens of their contexts.
        """
        if not self._services or not wanting:
            return replace(PLAIN, reason=Reason.NOT_WANTED if self._services else Reason.NO_SPECULATORS)
        if not self._adaptive:
            return fixed_choice(self._budget, self.acceptance.everybody, batch, len(wanting))
        self.acceptance.follow(wanting)
        self.latency.reading.follow(wanting)
        choice = self._choose(batch, len(wanting))
        if choice.speculators:
            self.latency.reading.asked()
        return choice

    def observe(self, report: StepReport) -> None:
        """Learn from a step."""
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
        """Return the most promising choice, or a trial of another."""
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
        """Yield every speculator set and number of nodes, with the expected outcome."""
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
