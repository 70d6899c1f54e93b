"""Sum up a gateway's steps since its start, for `Generation.Status`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.statistics import SpeculationCounts, SpeculatorCounts

PHASES = ("draft", "merge", "verify", "commit")
"""Phases of a step, in order."""


class Named(NamedTuple):
    """Metric labels of a speculator."""

    service: str
    """Address of the speculator's service, as the operator wrote it."""
    speculator: str


@dataclass(slots=True)
class GatewayTotals:
    """Totals of all sessions, including ended sessions."""

    steps: int = 0
    tokens: int = 0
    """Stored generated tokens."""
    finished: int = 0
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    """Sums over all trees; counts by speculator are in `speculators`."""
    phases: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    """Seconds by phase, in the order of `PHASES`."""
    speculators: dict[Named, SpeculatorCounts] = field(default_factory=dict)
    """Counts by speculator, over all sessions."""

    def add(self, step: FinishedStep, names: Sequence[Named]) -> None:
        """Add a step; `names[i]` is the name of speculator i."""
        self.steps += 1
        self.counts += replace(step.counts, speculators={})
        self.phases = [before + seconds for before, seconds in zip(self.phases, step.phases, strict=True)]
        for number, counts in step.counts.speculators.items():
            self.speculators.setdefault(names[number], SpeculatorCounts()).__iadd__(counts)
