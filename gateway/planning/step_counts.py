"""What speculation did in a step, by speculator. Pure.

drafted by A: the-cat-sat, by B: the-cat-ran         proposed  kept  duplicate  accepted  won
verified:     the-+-cat-+-sat, accepted: cat, sat    A   2       2       1         2      yes
                        +-ran                        B   2       2       1         1      no
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.planning.feedback import FinishedStep
from gateway.requests.request import nodes_by_speculator
from specinfer.entry_status import EntryStatus
from specinfer.tree import TokenTree


@dataclass(slots=True)
class SpeculatorStep:
    """What one speculator did in a step, all requests together."""

    drafts: int = 0
    """Verified trees with nodes of its."""
    proposed: int = 0
    """Nodes of its drafts, roots excluded."""
    kept: int = 0
    """Those of them that were verified."""
    duplicate: int = 0
    """Those of them that another speculator proposed, too."""
    accepted: int = 0
    wins: int = 0
    """Trees of which it proposed the whole accepted path, of at least one node."""


@dataclass(slots=True)
class StepCounts:
    """What all did."""

    speculators: dict[int, SpeculatorStep] = field(default_factory=dict)
    """By number."""
    depths: list[int] = field(default_factory=list)
    """Accepted nodes of every verified tree that had nodes below its root."""
    nodes: int = 0
    """Verified nodes, roots excluded."""
    resyncs: int = 0
    """Requests of which the verifier held something else."""

    def of(self, speculator: int) -> SpeculatorStep:
        """The counts of one speculator."""
        found = self.speculators.get(speculator)
        if found is None:
            found = self.speculators[speculator] = SpeculatorStep()
        return found


def count_step(step: FinishedStep) -> StepCounts:
    """Counts a finished step."""
    counts = StepCounts()
    for drafts in step.drafts.values():
        for speculator, draft in drafts:
            counts.of(speculator).proposed += len(draft) - 1
    for request_id, verdict in step.verdicts.items():
        tree = step.trees.get(request_id)
        if verdict.status is EntryStatus.RESYNC:
            counts.resyncs += 1
        elif verdict.status is EntryStatus.OK and tree is not None and len(tree) > 1:
            _count_tree(counts, tree, verdict.accepted)
    return counts


def _count_tree(counts: StepCounts, tree: TokenTree, accepted: Sequence[int]) -> None:
    counts.nodes += len(tree) - 1
    counts.depths.append(len(accepted))
    path, found = set(accepted), nodes_by_speculator(tree)
    for speculator, nodes in found.items():
        own = counts.of(speculator)
        own.drafts += 1
        own.kept += len(nodes)
        own.accepted += len(nodes & path)
        own.wins += bool(path) and path <= nodes
        if len(found) > 1:
            own.duplicate += len(nodes & set().union(*[n for s, n in found.items() if s != speculator]))
