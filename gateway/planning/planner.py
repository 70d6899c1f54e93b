"""Decides per step which speculators are asked, and which nodes are worth verifying. Pure: told, never asks.

The expected speed of asking the speculators S at batch size b is

    b * (1 + gain(S)) / (overhead + slowest service of S + pass(b * (1 + nodes of S that were verified)))

and every term is measured while serving (`costs`, `gains`). The empty set is plain decoding: hopeless
text or a large batch ends there. What is not chosen teaches nothing, so now and then a step looks at it: at
plain decoding, at the whole pool, at its quickest member. A look that costs much is taken rarely, one
that costs little often, so that those that are due together slow decoding down by two per cent at most.

How many nodes a tree gets is decided node by node, over the whole batch (`worth`).

What is chosen depends only on committed tokens and on time, so it never biases the output.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.planning.acceptance import Gains, Outcomes, Part
from gateway.planning.latency import BySize, DraftTime, StepCosts
from gateway.planning.node_threshold import NodeWorth, judge_nodes
from gateway.planning.pass_times import PassCurve

_FIRST_OUTCOMES = 16
"""Trees that are looked at in full, at whatever batch size, before gains are believed."""
_LOOK_SHARE, _PLAIN_LOOK_SHARE = 0.01, 0.005
"""Of the time, for looks at drafts of either kind, and at plain decoding, whose gain is known. Less for large
batches: a look then tells about many texts."""
_LEAST_WAIT, _LONGEST_WAIT = 4, 400
"""Steps between two looks."""
_PAUSE = 4
"""Steps of plain decoding between two thoughts of anything else: thinking takes time, too."""
_BEGIN, _GO_ON = 1.07, 1.02
"""Speculation must promise so much of plain decoding's speed to begin and to go on: of several noisy promises
the best one is more often too good."""
_WHOLE = 1.03
"""Times its promise counts the whole pool: a step of it tells about all parts, one of a part only about
that, and copying comes in bursts that nobody foresees."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one step does."""

    speculators: Part
    nodes: int
    """Most nodes drafted per request; 0 with no speculators is plain decoding."""


PLAIN = Choice(frozenset(), 0)


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
    """Of the requests that wanted a tree."""


@dataclass(slots=True)
class _Course:
    """How things go at one batch size."""

    speculating: bool = True
    steps: int = 0
    looked: dict[Part, int] = field(default_factory=dict)
    """Step of the last look at a part of the pool."""
    plain_until: int = 0
    """A look at plain decoding takes two steps: the first still feels the drafts before it."""


class Planner:
    """Chooses, and learns from what came of it."""

    def __init__(self, passes: PassCurve, most_nodes: int, step_nodes: int, adaptive: bool = True) -> None:
        self._most_nodes, self._step_nodes, self._adaptive = most_nodes, step_nodes, adaptive
        self.costs, self.gains = StepCosts(passes), Gains()
        self._services: Sequence[Part] = ()
        self._courses: BySize[_Course] = BySize(_Course)

    def enrol(self, services: Sequence[Part]) -> None:
        """From now on the pool has these speculators, by service: those of one draft one after another."""
        if services != self._services:
            self._services = services
            self.gains.enrol(frozenset().union(*services))

    def choose(self, batch: int, wanting: Sequence[str]) -> Choice:
        """What the next step should do for a batch of this size, of which these requests want trees."""
        everybody = self.gains.everybody
        if not everybody or not wanting:
            return PLAIN
        if not self._adaptive:
            return self._asking(everybody, batch)
        if self._room(batch) < batch:
            return PLAIN  # not a node for every request: drafts cost more than that brings
        self.gains.follow(wanting, self._asking(everybody, batch).nodes)
        course = self._courses[batch]
        course.steps += 1
        if self.gains.outcomes < _FIRST_OUTCOMES:
            return self._asking(everybody, batch)
        if course.steps <= course.plain_until or (not course.speculating and course.steps % _PAUSE):
            return PLAIN
        best = self._best(batch, course)
        look = self._look(batch, course, best)
        return best if look is None else self._asking(look, batch)

    def observe(self, report: StepReport) -> None:
        """Learns from a step."""
        if not self._adaptive:
            return
        if report.drafts or not report.choice.speculators:
            self.costs.observe(report.batch, report.tokens, report.pass_s, report.drafts, report.overhead_s)
        else:  # late, or reading what they missed: not what steps usually take
            self.costs.observe_pass(report.batch, report.tokens, report.pass_s)
        if report.choice.speculators and report.outcomes:
            self.gains.observe(report.batch, report.choice.speculators, report.outcomes)

    def expected_speed(self, batch: int, choice: Choice) -> float:
        """Tokens per second expected of a choice."""
        part = choice.speculators
        return batch * (1 + self.gains.expected(batch, part)) / self._seconds(batch, part)

    def worth(self, batch: int, choice: Choice) -> NodeWorth:
        """Which nodes pay in this step.

        A node does if it brings tokens at least as fast as the step does without it: its probability over
        what it adds to the pass, against the expected speed. So confident requests get many nodes and
        hopeless ones few, and the more a pass costs the choosier it gets.
        """
        if not self._adaptive:
            return NodeWorth([0.0] * self._step_nodes)
        speed = max(self.expected_speed(batch, PLAIN), self.expected_speed(batch, choice))
        most = min(self._step_nodes, batch * self._most_nodes)
        seconds = [self.costs.passes.seconds(batch, nodes) for nodes in range(most + 1)]
        return judge_nodes(seconds, speed, batch)

    def _best(self, batch: int, course: _Course) -> Choice:
        choices = [self._asking(part, batch) for part in self.gains.parts]
        speeds = [self.expected_speed(batch, choice) for choice in choices]
        speeds[-1] *= _WHOLE  # the parts come in order of size
        least = _GO_ON if course.speculating else _BEGIN
        course.speculating = max(speeds) > least * self.expected_speed(batch, PLAIN)
        return choices[speeds.index(max(speeds))] if course.speculating else PLAIN

    def _look(self, batch: int, course: _Course, best: Choice) -> Part | None:
        """The part of the pool that it is time to look at, if any. Thought of every few steps only."""
        if course.steps % _LEAST_WAIT:
            return None
        members = [(frozenset({s}), service) for service in self._services for s in sorted(service)]
        quickest, _ = min(members, key=lambda member: self.costs.draft_seconds(batch, *member))
        for part in (PLAIN.speculators, self.gains.everybody, quickest):
            if part == best.speculators or PLAIN.speculators < part < best.speculators:
                course.looked[part] = course.steps  # the step tells about it anyway
            elif course.steps - course.looked.setdefault(part, course.steps) >= self._wait(batch, part, best):
                course.looked[part] = course.steps
                if not part:
                    course.plain_until = course.steps + 1
                return part
        return None

    def _wait(self, batch: int, part: Part, best: Choice) -> float:
        """Steps over which a look is paid off that brings no more than plain decoding would."""
        lost = self._seconds(batch, part) - batch / self.expected_speed(batch, best)
        lost *= 1 if part else 2
        share = (_LOOK_SHARE if part else _PLAIN_LOOK_SHARE) / math.sqrt(batch)
        return min(max(lost / (share * self._seconds(batch, best.speculators)), _LEAST_WAIT), _LONGEST_WAIT)

    def _seconds(self, batch: int, part: Part) -> float:
        return self.costs.step_seconds(batch, part, self._services, self.gains.nodes(batch, part))

    def _asking(self, part: Part, batch: int) -> Choice:
        if not part:
            return PLAIN
        return Choice(part, min(self._most_nodes, max(1, self._room(batch) // batch)))

    def _room(self, batch: int) -> int:
        """Nodes of a step for all requests: every further one has a token of its own in the pass."""
        return self._step_nodes - (batch - 1)
