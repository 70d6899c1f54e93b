"""The planner: per step, which speculators are asked and how many nodes are verified. Pure: told, never asks.

    tokens(S, n)  = batch + accepted(S, n)          the acceptance model: measured (`acceptance`) or learned
    seconds(S, n) = overhead + slowest service of S + pass(n)       the latency model (`latency`)
    choice        = the speculator set S and the n with the most tokens per second

    node threshold = tokens(S, n) / seconds(S, n) * (pass(n) - pass(0)) / n

Plain decoding is the empty set. Of all that is drafted, at most n nodes are verified, the most probable ones
of the whole batch, as long as they bring tokens at least as fast as the step does: a node whose path
probability is below the threshold costs more time than its chance is worth. (A price of its own for every
node, in passes that grow in stairs, brings nothing: docs/findings.md#flat-price.) What is not chosen teaches
nothing, so now and then a step probes the whole pool or plain decoding, as often as that costs one per cent
of the time; speculators that were not asked for a while have to read what they missed first.

What is chosen depends on committed tokens, earlier steps and time only, so it never biases the output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gateway.planning.acceptance import AcceptanceModel, Outcomes
from gateway.planning.latency import DraftTime, LatencyModel, SpeculatorSet
from gateway.planning.pass_times import PassCurve
from gateway.requests.budget import NodeBudget

_FIRST_OUTCOMES = 16
"""Trees that the whole pool drafts before the acceptance model is believed."""
_MARGIN = 1.02
"""Speculation must promise so much of plain decoding's speed: of several noisy promises the best is too
good."""
_PROBE_SHARE = 0.005
"""Of the time, for probes of the whole pool, and as much for probes of plain decoding."""


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
        self._left_out_s = {"probe all": 0.0, "probe plain": 0.0}
        """Time in which the whole pool, and plain decoding, were not tried."""
        self._plain_again = False
        """A probe of plain decoding takes two steps: the first one's caches are cold from drafts."""

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
        self.acceptance.chosen(choice.speculators, choice.step_nodes / len(wanting))
        if choice.speculators:
            self.latency.reading.asked()
        return choice

    def observe(self, report: StepReport) -> None:
        """Learns from a step."""
        if not self._adaptive:
            return
        if report.drafts or not report.choice.speculators:
            self.latency.observe(report.batch, report.tokens, report.pass_s, report.drafts, report.overhead_s)
        else:  # late: not what steps usually take
            self.latency.observe_pass(report.batch, report.tokens, report.pass_s)
        drafted = len(report.outcomes) + len(report.chains)
        if report.choice.speculators and drafted:
            asked, nodes = report.choice.speculators, report.choice.step_nodes / drafted
            self.acceptance.observe(asked, nodes, report.outcomes, contexts=report.contexts)
            self.acceptance.observe(asked, nodes, report.chains, merged=False)

    def _choose(self, batch: int, requests: int) -> Choice:
        """What promises most, or a probe."""
        most = self._budget.of_step(batch, requests)
        accepted = self.acceptance.by_nodes(most)
        passes = self.latency.passes.seconds_by_nodes(batch, most)
        plain = self._plain(batch, float(passes[0]))
        sets = [
            self._expect(batch, requests, asked, own, passes)
            for asked, own in zip(self.acceptance.sets, accepted, strict=True)
        ]
        if self.acceptance.outcomes < _FIRST_OUTCOMES:
            return replace(sets[-1], plain_speed=plain.speed, reason="first trees")
        best = max(sets, key=lambda choice: choice.speed)
        best = best if best.speed > _MARGIN * plain.speed else plain
        return replace(self._best_or_probe(best, sets[-1], plain), plain_speed=plain.speed)

    def _fixed(self, batch: int, requests: int) -> Choice:
        """Everybody, and as many nodes as the budget allows."""
        most = self._budget.of_step(batch, requests)
        nodes = min(self._budget.per_request, max(1, most // requests))
        return Choice(self.acceptance.everybody, nodes, most, reason="not adaptive")

    def _plain(self, batch: int, pass_s: float) -> Choice:
        """Plain decoding, with the tokens and seconds to expect of it."""
        seconds = pass_s + self.latency.seconds_before_pass(batch, frozenset(), ())
        return Choice(tokens=float(batch), seconds=seconds, reason="plain is faster")

    def _expect(
        self,
        batch: int,
        requests: int,
        asked: SpeculatorSet,
        accepted: NDArray[np.float64],
        passes: NDArray[np.float64],
    ) -> Choice:
        """The best number of nodes for a speculator set, with the tokens and seconds to expect of it.

        Args:
            accepted: [1 + most nodes] tokens with 0, 1, ... nodes in all.
            passes: [1 + most nodes] seconds.
        """
        tokens = batch + accepted
        seconds = passes + self.latency.seconds_before_pass(batch, asked, self._services)
        total = int((tokens[1:] / seconds[1:]).argmax()) + 1 if len(passes) > 1 else 0
        # a batch shares its nodes unevenly: a predictable text gets up to twice its share
        nodes = min(self._budget.per_request, total, max(1, -(-2 * total // requests)))
        return Choice(
            asked,
            nodes,
            total,
            float(tokens[total]),
            float(seconds[total]),
            node_seconds=float(seconds[total] - seconds[0]) / max(total, 1),
            reason="fastest",
        )

    def _best_or_probe(self, best: Choice, pool: Choice, plain: Choice) -> Choice:
        """The best choice, or one that was left out for so long that trying it costs little of that time."""
        if self._plain_again:
            self._plain_again = False
            return replace(plain, reason="probe plain")
        for kind, probe, steps in (("probe all", pool, 1), ("probe plain", plain, 2)):
            if probe.speculators == best.speculators:
                continue  # the step tells about it anyway
            self._left_out_s[kind] += best.seconds
            if _PROBE_SHARE * self._left_out_s[kind] >= steps * self._cost(probe, best):
                self._left_out_s[kind] = 0.0
                self._plain_again = steps > 1
                return replace(probe, reason=kind)
        return best

    def _cost(self, probe: Choice, best: Choice) -> float:
        """Seconds that a step takes longer for its tokens than with the best choice."""
        behind = bool(probe.speculators) and not best.speculators
        catching_up = self.latency.seconds_to_catch_up(self._services) if behind else 0.0
        return probe.seconds + catching_up - probe.tokens / best.speed
