"""What became of the drafts that a service was asked for, until somebody takes the figures. Pure.

A draft is one speculator's tree for one request. Its outcome is one of:

    ok         it came in time and is sound; or its speculator had nothing to propose
    late       sound, but the step had gone on without it
    failed     the service or the speculator answered with an error, or not at all
    malformed  not a tree that was asked for
    stale      its request had ended when it came
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["ok", "late", "failed", "malformed", "stale"]


@dataclass(slots=True)
class DraftStatistics:
    """One service's figures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    resyncs: int = 0
    """Requests of which the service held something else."""
    quarantines: Counter[int] = field(default_factory=Counter)
    """Times that a speculator was left out, by its number."""

    def count(self, outcome: Outcome, drafts: int = 1) -> None:
        """Counts drafts."""
        if drafts:
            self.outcomes[outcome] += drafts

    def take(self) -> "DraftStatistics":
        """The figures since the last call."""
        taken = DraftStatistics(self.outcomes, self.resyncs, self.quarantines)
        self.outcomes, self.resyncs, self.quarantines = Counter(), 0, Counter()
        return taken

    def __bool__(self) -> bool:
        return bool(self.outcomes or self.resyncs or self.quarantines)
