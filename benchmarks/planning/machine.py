"""Simulate the times of passes and drafts on a disturbed machine.

Costs are those of the default weights on two cores (Zen 5, blocks of Q4_1). The machine's speed drifts by a fifth, the
cost of nodes drifts independently, one pass in a hundred is disturbed, sometimes a hundred successive steps take 1.5
times as long, and the first steps of a process are cold.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log2

from specinfer.planning.pass_curve import PassCurve

PASSES = ((1, 2.6), (2, 2.6), (4, 2.7), (8, 3.4), (16, 4.9), (32, 10.4), (64, 20.5))
"""(tokens, milliseconds) of passes."""


def draft_s(speculator: int, nodes: int) -> float:
    """Return the seconds of drafting for one request, by nodes."""
    return (0.0006 + 0.0002 * log2(1 + nodes) + 0.00008 * nodes) if speculator == 0 else 0.0002


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of a machine and its models."""

    passes: Sequence[tuple[int, float]] = PASSES
    """(tokens, milliseconds)."""
    drafts: Callable[[int, int], float] = draft_s
    """(speculator, nodes) -> seconds of drafting for one request."""
    plain_s: float = 0.0017
    trees_s: float = 0.0020
    """Seconds of a step in addition to pass and drafts."""
    wire_s: float = 0.0009
    read_s: float = 0.00006
    """Seconds that speculators need to read a token."""
    ngrams: bool = False
    """True if the fast speculator drafts only in self-copying, predictable text."""
    speed_change: float = 0.0
    """Probability per step of a change between usual and half speed."""

    @cached_property
    def curve(self) -> PassCurve:
        """Seconds of passes."""
        return PassCurve([(tokens, ms / 1000) for tokens, ms in self.passes])


USUAL = Costs()
COLD_S = (0.016, 0.026, 0.002)
"""Extra seconds of the first three steps with trees, in reverse order.

With reading the prompt, these steps take 20, 35, 25 ms at batch 1. Plain steps take a fifth of the extra time.
"""
OFTEN, DISTURBED = 0.01, 4.0
"""Share of disturbed passes, and their relative time."""


class Machine:
    """Random times of passes and drafts."""

    def __init__(self, seed: int, costs: Costs = USUAL) -> None:
        self._rng, self._drift, self.costs = random.Random(seed), random.Random(-seed), costs
        self.pace = self._slope = 0.0
        self.slowness = 1.0
        """Factor of all times, relative to the measured machine."""
        self._neighbour = 0
        self._cold = {True: list(COLD_S), False: [seconds / 5 for seconds in COLD_S]}

    def turn(self) -> None:
        """Start the next step: update drift and disturbances."""
        self.pace = 0.97 * self.pace + self._drift.gauss(0, 0.03)
        self._slope = 0.97 * self._slope + self._drift.gauss(0, 0.03)
        self._neighbour = self._neighbour - 1 if self._neighbour else 100 * (self._drift.random() < 0.0005)
        if self.costs.speed_change and self._drift.random() < self.costs.speed_change:
            self.slowness = 2.0 if self.slowness == 1.0 else 1.0

    def slowed(self, seconds: float) -> float:
        """Return the current time of work of `seconds`."""
        return self.steadily(seconds) * self._rng.lognormvariate(0, 0.06)

    def steadily(self, seconds: float) -> float:
        """Return the current time of work, without disturbances."""
        return seconds * exp(self.pace) * self.slowness * (1.5 if self._neighbour else 1.0)

    def pass_s(self, batch: int, tokens: int) -> float:
        """Return the seconds of a pass."""
        curve = self.costs.curve
        base = curve.at(batch)
        disturbed = DISTURBED if self._rng.random() < OFTEN else 1.0
        return self.slowed(base + exp(self._slope) * (curve.at(tokens) - base)) * disturbed

    def cold_s(self, trees: bool) -> float:
        """Return the extra seconds of a cold step."""
        return self._cold[trees].pop() if self._cold[trees] else 0.0
