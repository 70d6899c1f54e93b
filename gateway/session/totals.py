"""Sum up a gateway's steps since its start, for `Generation.Status`. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.statistics import SpeculationCounts, SpeculatorCounts

PHASES = ("draft", "merge", "verify", "commit")
"""Phases of a step, in order."""
_MINUTE_S = 60.0


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

    @property
    def row(self) -> "Recent":
        counts = self.counts
        return Recent(
            0.0, self.finished, self.tokens, self.steps, counts.trees, counts.drafted, counts.accepted
        )


class Recent(NamedTuple):
    """Seconds of an interval, and the growth of totals in it."""

    seconds: float
    finished: int
    new_tokens: int
    steps: int
    trees: int
    drafted: int
    accepted: int


class LastMinute:
    """Growth of totals over the last minute, of which marks are kept about once a second."""

    def __init__(self, now: float) -> None:
        """Begin at `now`, in monotonic seconds, with totals of zero."""
        self._marks = deque([Recent(now, *[0] * 6)])

    def mark(self, now: float, totals: GatewayTotals) -> None:
        """Remember the totals, unless the latest mark is younger than a second."""
        if now - self._marks[-1].seconds >= 1:
            self._marks.append(totals.row._replace(seconds=now))
        while len(self._marks) > 1 and now - self._marks[1].seconds >= _MINUTE_S:
            self._marks.popleft()

    def growth(self, now: float, totals: GatewayTotals) -> Recent:
        """Return the growth since the oldest mark."""
        later = totals.row._replace(seconds=now)
        grown = [new - old for new, old in zip(later[1:], self._marks[0][1:], strict=True)]
        return Recent(now - self._marks[0].seconds, *map(int, grown))
