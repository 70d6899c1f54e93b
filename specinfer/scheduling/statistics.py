"""Counts of speculation for a request: of one verified tree, and of all so far. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specinfer.tree import NOBODY, TokenTree


class SpeculatorPart(NamedTuple):
    """One speculator's contribution to a tree."""

    drafted: int
    """Nodes that it proposed, roots excluded."""
    accepted: int
    won: bool
    """True if it proposed the whole accepted path, of at least one node."""
    duplicate: int
    """Nodes that another speculator proposed, too."""


class TreeOutcome(NamedTuple):
    """Counts of a verified tree."""

    drafted: int
    """Nodes, root excluded."""
    accepted: int
    speculators: dict[int, SpeculatorPart]
    """Contributions by the speculator's number."""


def outcome_of(tree: TokenTree, accepted: Sequence[int]) -> TreeOutcome:
    """Count the nodes of a tree of which the verifier accepted these."""
    nodes: defaultdict[int, set[int]] = defaultdict(set)
    for proposal in tree.proposals:
        if proposal.speculator != NOBODY:
            nodes[proposal.speculator].update(proposal.children)
    path, twice = set(accepted), _proposed_twice(list(nodes.values()))
    parts = {
        speculator: SpeculatorPart(
            len(own), len(own & path), bool(path) and path <= own, len(own & twice) if twice else 0
        )
        for speculator, own in nodes.items()
    }
    return TreeOutcome(len(tree) - 1, len(accepted), parts)


def _proposed_twice(sets: Sequence[set[int]]) -> set[int]:
    """Return the members of more than one set."""
    if len(sets) < 2:
        return set()
    twice, seen = set[int](), set(sets[0])
    for nodes in sets[1:]:
        twice |= seen & nodes
        seen |= nodes
    return twice


@dataclass(slots=True)
class SpeculatorCounts:
    """One speculator's contribution to one request, or to all of a gateway."""

    drafted: int = 0
    accepted: int = 0
    wins: int = 0


@dataclass(slots=True)
class RequestSpeculation:
    """Counts of speculation for one request."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)
    """histogram[i]: steps that accepted i drafted tokens."""
    speculators: dict[int, SpeculatorCounts] = field(default_factory=dict)

    def add(self, other: "RequestSpeculation") -> None:
        """Add the counts of another request."""
        self.steps += other.steps
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.histogram.extend([0] * (len(other.histogram) - len(self.histogram)))
        for place, count in enumerate(other.histogram):
            self.histogram[place] += count
        for speculator, theirs in other.speculators.items():
            counts = self.speculators.setdefault(speculator, SpeculatorCounts())
            counts.drafted += theirs.drafted
            counts.accepted += theirs.accepted
            counts.wins += theirs.wins

    def record(self, tree: TokenTree, accepted: Sequence[int]) -> TreeOutcome:
        """Count one verified tree, and return its outcome."""
        outcome = outcome_of(tree, accepted)
        self.steps += 1
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        self.histogram.extend([0] * (len(accepted) + 1 - len(self.histogram)))
        self.histogram[len(accepted)] += 1
        for speculator, part in outcome.speculators.items():
            counts = self.speculators.setdefault(speculator, SpeculatorCounts())
            counts.drafted += part.drafted
            counts.accepted += part.accepted
            counts.wins += part.won
        return outcome
