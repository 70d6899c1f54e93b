"""Derive outcomes of smaller trees and of fewer speculators. Pure."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from specinfer.planning.choice import SpeculatorSet
from specinfer.tree import TokenTree

_RECORDS = 256
"""Number of latest trees from which shares are computed."""


def ranked_nodes(tree: TokenTree, accepted: Sequence[int]) -> list[int]:
    """Return the minimum number of nodes that yields 1, 2, ... accepted tokens.

    A smaller tree has the nodes of the highest path probability. Nodes forced by a constraint do not count.
    """
    if not accepted:
        return []
    rank = _ranks(tree, set(range(1, len(tree))) - tree.forced)
    return list(accumulate([rank[node] for node in accepted], max))


def nodes_needed(tree: TokenTree, accepted: Sequence[int], speculators: SpeculatorSet) -> list[int]:
    """Return `ranked_nodes` of the part proposed by a speculator set.

    The list ends at the first accepted token that the set did not propose.
    """
    rank, needed = _ranks(tree, _proposed_by(tree, speculators)), list[int]()
    for node in accepted:
        if node not in rank:
            break
        needed.append(max(rank[node], needed[-1] if needed else 0))
    return needed


def _proposed_by(tree: TokenTree, speculators: SpeculatorSet) -> set[int]:
    """Return the nodes whose whole path a speculator set proposed."""
    proposed = {child for p in tree.proposals if p.speculator in speculators for child in p.children}
    kept = {0}
    for node, parent in enumerate(tree.parents.tolist()):
        if node in proposed and parent in kept:
            kept.add(node)
    return kept - {0}


def _ranks(tree: TokenTree, nodes: set[int]) -> dict[int, int]:
    """Return the ranks, from 1, of `nodes` by falling path probability."""
    chances: list[float] = []
    for parent, score in zip(tree.parents.tolist(), tree.scores.tolist(), strict=True):
        chances.append(score * chances[parent] if parent >= 0 else 1.0)
    ranking = sorted(nodes, key=lambda node: (-chances[node], node))
    return {node: rank for rank, node in enumerate(ranking, 1)}


class Shares:
    """Shares of the pool's accepted tokens for subsets of its speculators."""

    def __init__(self, everybody: SpeculatorSet) -> None:
        self.everybody = everybody
        self._paths: deque[tuple[SpeculatorSet, ...]] = deque(maxlen=_RECORDS)
        """For each accepted path, the speculators that proposed each of its tokens."""
        self._new = 0
        self._shares: dict[SpeculatorSet, float] = {}
        self.sets: list[SpeculatorSet] = [everybody]
        """Sets to plan: single speculators, and sets grown greedily."""

    def add(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Count a tree that all speculators drafted."""
        if not accepted or len(self.everybody) < 2:
            return
        proposers: dict[int, set[int]] = {node: set() for node in accepted}
        for proposal in tree.proposals:
            for child in proposal.children:
                if child in proposers:
                    proposers[child].add(proposal.speculator)
        self._paths.append(tuple(map(frozenset, proposers.values())))
        self._new += 1
        if 8 * self._new >= len(self._paths) >= 8:
            self._new, self._shares = 0, {}
            self.sets = self._sets_worth_asking()

    def share(self, speculators: SpeculatorSet) -> float:
        """Return a speculator set's share of the whole pool's accepted tokens.

        A path counts up to its first token that the set did not propose.
        """
        if speculators not in self._shares:
            whole = sum([len(path) for path in self._paths])
            prefix = sum([_own_prefix(path, speculators) for path in self._paths])
            self._shares[speculators] = prefix / whole if whole and speculators != self.everybody else 1.0
        return self._shares[speculators]

    def _sets_worth_asking(self) -> list[SpeculatorSet]:
        pool, grown = frozenset[int](), list[SpeculatorSet]()
        while pool != self.everybody:
            pool |= {
                max(sorted(self.everybody - pool), key=lambda speculator: self.share(pool | {speculator}))
            }
            grown.append(pool)
        singles = [frozenset({speculator}) for speculator in sorted(self.everybody)]
        return list(dict.fromkeys([*singles, *grown]))


def _own_prefix(path: Sequence[SpeculatorSet], speculators: SpeculatorSet) -> int:
    """Return how many first tokens of a path the set proposed."""
    return next((length for length, proposers in enumerate(path) if not proposers & speculators), len(path))
