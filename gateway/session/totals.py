"""Totals of a gateway since it started, for `Generation.Status`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from specinfer.planning.feedback import FinishedStep
from specinfer.planning.step_counts import StepCounts
from specinfer.scheduling.statistics import SpeculatorCounts

PHASES = ("draft", "merge", "verify", "commit")
"""Phases of a step, in order."""


class Named(NamedTuple):
    """A speculator, as labels name it."""

    service: str
    """Address of its service."""
    speculator: str


@dataclass(slots=True)
class GatewayTotals:
    """Totals of all sessions, also of those that have ended."""

    steps: int = 0
    tokens: int = 0
    finished: int = 0
    trees: int = 0
    """Verified trees with nodes below their root."""
    drafted: int = 0
    """Nodes of these trees, roots excluded."""
    accepted: int = 0
    phases: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    """Seconds, in the order of `PHASES`."""
    speculators: dict[Named, SpeculatorCounts] = field(default_factory=dict)
    """Counts by speculator, over all sessions."""

    def add(self, step: FinishedStep, counts: StepCounts, names: Sequence[Named]) -> None:
        """Add a step; `names` are those of the speculators by number."""
        self.steps += 1
        self.trees += len(counts.depths)
        self.drafted += counts.nodes
        self.accepted += counts.accepted
        for index, (start, stop) in enumerate(pairwise(step.times[1:])):
            self.phases[index] += stop - start
        for number, did in counts.speculators.items():
            total = self.speculators.setdefault(names[number], SpeculatorCounts())
            total.drafted += did.kept
            total.accepted += did.accepted
            total.wins += did.wins
