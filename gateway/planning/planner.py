"""The planner: per step, which speculators are asked and how many nodes are verified. Pure: told, never asks.

    tokens(S, n)  = batch + accepted(S, n)                          the acceptance model (`acceptance`)
    seconds(S, n) = overhead + slowest service of S + pass(n)       the latency model (`latency`)
    choice        = the speculator set S and the n with the most tokens per second

Plain decoding is the empty set. The rest of a step follows from the speed of its choice: which single nodes
are kept (`node_threshold`). What is not chosen teaches nothing, so now and then a step probes the whole pool
or plain decoding, as often as that costs one per cent of the time.

What is chosen depends on earlier steps and on time only, so it never biases the output.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gateway.planning.acceptance import AcceptanceModel, Outcomes
from gateway.planning.averages import BySize
from gateway.planning.latency import DraftTime, LatencyModel, SpeculatorSet
from gateway.planning.node_threshold import NO_NODES, NodeThreshold, node_threshold
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
    reason: str = "no speculators"

    @property
    def speed(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


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
    """Of every service that answered in time and had no more to read than usual."""
    overhead_s: float
    """All the rest: from the end of the step before, if there was no pause, to the end of this one."""
    outcomes: Outcomes
    """Of the requests that had merged trees."""
    chains: Outcomes = field(default_factory=dict)
    """Of the requests that had one speculator's chain."""


@dataclass(slots=True)
class _Probes:
    """At one batch size: seconds since the last probe of each kind."""

    since_s: dict[str, float] = field(default_factory=lambda: {"probe all": 0.0, "probe plain": 0.0})
    settling: bool = False
    """A probe of plain decoding takes two steps: the first one's caches are cold from drafts."""

    def due(self, kind: str, cost_s: float) -> bool:
        """Whether a probe that loses this much time is due; counts it if so."""
        if _PROBE_SHARE * self.since_s[kind] < cost_s:
            return False
        self.since_s[kind] = 0.0
        return True

    def count(self, seconds: float) -> None:
        """Counts a step."""
        for kind in self.since_s:
            self.since_s[kind] += seconds


class Planner:
    """Chooses, and learns from what came of it."""

    def __init__(self, curve: PassCurve, budget: NodeBudget, adaptive: bool = True) -> None:
        self._budget, self._adaptive = budget, adaptive
        self.latency, self.acceptance = LatencyModel(curve), AcceptanceModel()
        self._services: Sequence[SpeculatorSet] = ()
        self._probes: BySize[_Probes] = BySize(_Probes)

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """From now on the pool has these speculators, by service: those of one draft one after another."""
        if services != self._services:
            self._services = services
            self.acceptance.enrol(frozenset().union(*services))

    def choose(self, batch: int, wanting: Sequence[str]) -> Choice:
        """What the next step does for a batch of this size, of which these requests want drafts."""
        everybody = self.acceptance.everybody
        if not everybody or not wanting:
            return replace(PLAIN, reason="no speculators" if not everybody else "no request wants drafts")
        if not self._adaptive:
            return self._fixed(batch, len(wanting))
        self.acceptance.follow(wanting)
        plain, pool = (
            self._expect(batch, len(wanting), frozenset()),
            self._expect(batch, len(wanting), everybody),
        )
        if self.acceptance.outcomes < _FIRST_OUTCOMES:
            return replace(pool, plain_speed=plain.speed, reason="first trees")
        sets = [self._expect(batch, len(wanting), asked) for asked in self.acceptance.sets]
        best = max(sets, key=lambda choice: choice.speed)
        best = best if best.speed > _MARGIN * plain.speed else plain
        return replace(self._probed(batch, best, pool, plain), plain_speed=plain.speed)

    def observe(self, report: StepReport) -> None:
        """Learns from a step."""
        if not self._adaptive:
            return
        if report.drafts or not report.choice.speculators:
            self.latency.observe(report.batch, report.tokens, report.pass_s, report.drafts, report.overhead_s)
        else:  # late, or reading what they missed: not what steps usually take
            self.latency.observe_pass(report.batch, report.tokens, report.pass_s)
        drafted = len(report.outcomes) + len(report.chains)
        if report.choice.speculators and drafted:
            asked, nodes = report.choice.speculators, report.choice.step_nodes / drafted
            self.acceptance.observe(asked, nodes, report.outcomes)
            self.acceptance.observe(asked, nodes, report.chains, merged=False)

    def threshold(self, batch: int, choice: Choice) -> NodeThreshold:
        """Which nodes are kept in a step of this choice."""
        if not choice.speculators:
            return NO_NODES
        if not self._adaptive:
            return NodeThreshold([0.0] * choice.step_nodes)
        seconds = self.latency.passes.seconds_by_nodes(batch, choice.step_nodes)
        return node_threshold(seconds, max(choice.speed, choice.plain_speed), batch)

    def _fixed(self, batch: int, requests: int) -> Choice:
        """Everybody, and as many nodes as the budget allows."""
        most = self._budget.of_step(batch, requests)
        nodes = min(self._budget.per_request, max(1, most // requests))
        return Choice(self.acceptance.everybody, nodes, most, reason="not adaptive")

    def _expect(self, batch: int, requests: int, asked: SpeculatorSet) -> Choice:
        """The best number of nodes for a speculator set, with the tokens and seconds to expect of it."""
        most = self._budget.of_step(batch, requests) if asked else 0
        tokens = batch + self.acceptance.per_doubling(asked) * _doublings(most, requests)
        seconds = self.latency.step_seconds(batch, asked, self._services, most)
        total = int(np.argmax(tokens[1:] / seconds[1:])) + 1 if most else 0
        # a batch shares its nodes unevenly: a predictable text gets up to twice its share
        nodes = min(self._budget.per_request, total, max(1, -(-2 * total // requests)))
        reason = "fastest" if asked else "plain is faster"
        return Choice(asked, nodes, total, float(tokens[total]), float(seconds[total]), reason=reason)

    def _probed(self, batch: int, best: Choice, pool: Choice, plain: Choice) -> Choice:
        """The best choice, or a probe of another if one is due."""
        probes = self._probes[batch]
        probes.count(best.seconds)
        if probes.settling:
            probes.settling = False
            return replace(plain, reason="probe plain")
        for kind, probe in (("probe all", pool), ("probe plain", plain)):
            told = best.speculators == probe.speculators  # the step tells about it anyway
            cost_s = probe.seconds - probe.tokens / best.speed
            if not told and probes.due(kind, cost_s if probe.speculators else 2 * cost_s):
                probes.settling = not probe.speculators
                return replace(probe, reason=kind)
        return best


@lru_cache(maxsize=256)
def _doublings(most: int, requests: int) -> NDArray[np.float64]:
    """[1 + most] log2(1 + nodes / requests) for 0, 1, ... nodes in all."""
    return np.log2(1 + np.arange(most + 1) / requests)
