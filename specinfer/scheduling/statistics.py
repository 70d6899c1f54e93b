"""Count drafted and accepted nodes; `+=` adds counts. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from specinfer.tree import NOBODY, TokenTree


class Summed:
    """A dataclass of counts, which `+=` adds field by field."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __iadd__(self, other: Self) -> Self:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(slots=True)
class SpeculatorCounts(Summed):
    drafts: int = 0
    """Verified trees with nodes of this speculator."""
    proposed: int = 0
    """Nodes of this speculator's drafts, roots excluded."""
    drafted: int = 0
    """Verified nodes that this speculator proposed."""
    duplicate: int = 0
    """Verified nodes that this and another speculator proposed."""
    accepted: int = 0
    wins: int = 0
    """Trees whose whole accepted path this speculator proposed."""


@dataclass(slots=True)
class SpeculationCounts:
    """Counts of verified trees; a plainly decoded request has a root-only tree."""

    steps: int = 0
    """Verified trees."""
    trees: int = 0
    """Verified trees with nodes below their roots."""
    drafted: int = 0
    """Verified nodes, roots excluded."""
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)
    """[i]: number of verified trees with i accepted nodes."""
    speculators: dict[int, SpeculatorCounts] = field(default_factory=dict)
    """Counts by the speculator's number."""

    def __iadd__(self, other: "SpeculationCounts") -> "SpeculationCounts":
        self.steps += other.steps
        self.trees += other.trees
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.histogram.extend([0] * (len(other.histogram) - len(self.histogram)))
        for place, count in enumerate(other.histogram):
            self.histogram[place] += count
        for speculator, counts in other.speculators.items():
            self.of(speculator).__iadd__(counts)
        return self

    def of(self, speculator: int) -> SpeculatorCounts:
        counts = self.speculators.get(speculator)
        if counts is None:
            counts = self.speculators[speculator] = SpeculatorCounts()
        return counts

    @property
    def tokens(self) -> int:
        """Accepted and bonus tokens."""
        return self.accepted + self.steps

    @property
    def depths(self) -> list[int]:
        """[i]: number of trees with i accepted nodes, root-only trees excluded."""
        if not self.trees:
            return []
        return [self.histogram[0] - (self.steps - self.trees), *self.histogram[1:]]

    @property
    def positions(self) -> list[int]:
        """Accepted nodes by depth; position 0 is the child of the root."""
        return [sum(self.histogram[depth:]) for depth in range(1, len(self.histogram))]


def count_tree(tree: TokenTree, accepted: Sequence[int]) -> SpeculationCounts:
    """Count one verified tree with these accepted nodes."""
    counts = SpeculationCounts(1, int(len(tree) > 1), len(tree) - 1, len(accepted))
    counts.histogram = [0] * len(accepted) + [1]
    nodes: defaultdict[int, set[int]] = defaultdict(set)
    for proposal in tree.proposals:
        if proposal.speculator != NOBODY:
            nodes[proposal.speculator].update(proposal.children)
    path, twice = set(accepted), _proposed_twice(list(nodes.values()))
    for speculator, node_count in nodes.items():
        counts.speculators[speculator] = SpeculatorCounts(
            drafts=1,
            drafted=len(node_count),
            duplicate=len(node_count & twice) if twice else 0,
            accepted=len(node_count & path),
            wins=int(bool(path) and path <= node_count),
        )
    return counts


def count_all(trees: Sequence[SpeculationCounts], proposed: Mapping[int, int]) -> SpeculationCounts:
    """Sum a step's counts of trees and of proposed nodes by speculator."""
    counts = SpeculationCounts()
    for tree in trees:
        counts += tree
    for speculator, nodes in proposed.items():
        counts.of(speculator).proposed += nodes
    return counts


def _proposed_twice(sets: Sequence[set[int]]) -> set[int]:
    """Return the nodes that are in more than one set."""
    if len(sets) < 2:
        return set()
    twice, seen = set[int](), set(sets[0])
    for nodes in sets[1:]:
        twice |= seen & nodes
        seen |= nodes
    return twice
