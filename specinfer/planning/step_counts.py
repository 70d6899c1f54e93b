"""Counts of a step's drafts and verified trees, by speculator, and the trend of acceptance."""

from dataclasses import dataclass, field

from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.statistics import TreeOutcome
from specinfer.statuses import EntryStatus


@dataclass(slots=True)
class SpeculatorStep:
    """Counts of one speculator in a step, all requests together."""

    drafts: int = 0
    """Verified trees with its nodes."""
    proposed: int = 0
    """Nodes of its drafts, roots excluded."""
    kept: int = 0
    """Number of its proposed nodes that were verified."""
    duplicate: int = 0
    """Number of its verified nodes that another speculator proposed, too."""
    accepted: int = 0
    wins: int = 0
    """Trees of which it proposed the whole accepted path, of at least one node."""


@dataclass(slots=True)
class StepCounts:
    """Counts of all speculators in a step."""

    tokens: int = 0
    """Accepted and bonus tokens of all verified trees."""

    speculators: dict[int, SpeculatorStep] = field(default_factory=dict)
    """Counts by speculator number."""
    depths: list[int] = field(default_factory=list)
    """Accepted nodes of every verified tree that had nodes below its root."""
    nodes: int = 0
    """Verified nodes, roots excluded."""
    resyncs: int = 0
    """Requests of which the verifier held something else."""

    @property
    def accepted(self) -> int:
        """Accepted nodes."""
        return sum(self.depths)

    @property
    def positions(self) -> list[int]:
        """Accepted nodes by depth; position 0 is the child of the root."""
        return [sum([depth > at for depth in self.depths]) for at in range(max(self.depths, default=0))]

    def of(self, speculator: int) -> SpeculatorStep:
        """Return the counts of one speculator."""
        found = self.speculators.get(speculator)
        if found is None:
            found = self.speculators[speculator] = SpeculatorStep()
        return found


def count_step(step: FinishedStep) -> StepCounts:
    """Count a finished step."""
    counts = StepCounts()
    for speculator, nodes in step.proposed.items():
        counts.of(speculator).proposed += nodes
    for outcome in step.outcomes:
        counts.tokens += outcome.accepted + 1
        if outcome.drafted:
            _count(counts, outcome)
    counts.resyncs = sum([verdict.status is EntryStatus.RESYNC for verdict in step.verdicts.values()])
    return counts


def _count(counts: StepCounts, outcome: TreeOutcome) -> None:
    counts.nodes += outcome.drafted
    counts.depths.append(outcome.accepted)
    for speculator, part in outcome.speculators.items():
        did = counts.of(speculator)
        did.drafts += 1
        did.kept += part.drafted
        did.duplicate += part.duplicate
        did.accepted += part.accepted
        did.wins += part.won


WINDOW = 1000
"""Drafts that are judged together."""
LEAST = 0.1
"""Least part of the usual tokens of a speculator's drafts."""
_NEWEST = 0.05
"""Weight of a window in what is usual."""


@dataclass(slots=True)
class AcceptanceTrend:
    """Trend of one speculator."""

    usual: float | None = None
    """Accepted tokens per draft in the windows in which nothing was wrong."""
    latest: float = 0.0
    """Accepted tokens per draft of the newest drafts that were judged."""
    collapsed: bool = False
    _drafts: int = 0
    _accepted: int = 0
    _barren: int = 0
    """Drafts since one was accepted."""

    def note(self, drafts: int, accepted: int) -> bool:
        """Note the outcome of verified drafts; return whether the judgement has changed."""
        self._drafts += drafts
        self._accepted += accepted
        self._barren = 0 if accepted else self._barren + drafts
        before = self.collapsed
        if self._barren >= WINDOW:
            self._judge(0.0)
        elif self._drafts >= WINDOW:
            self._judge(self._accepted / self._drafts)
        return self.collapsed != before

    def _judge(self, rate: float) -> None:
        self._drafts = self._accepted = 0
        self.latest = rate
        self.collapsed = rate == 0 or (self.usual is not None and rate < LEAST * self.usual)
        if not self.collapsed:
            self.usual = rate if self.usual is None else self.usual + _NEWEST * (rate - self.usual)
