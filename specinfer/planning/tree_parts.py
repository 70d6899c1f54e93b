"""Derive outcomes of smaller trees and of fewer speculators. Pure."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from specinfer.planning.choice import SpeculatorSet
from specinfer.tree import TokenTree

_RECORDS = 256
"""Maximum trees of the whole pool from which shares are counted."""


def ranked_nodes(tree: TokenTree, accepted: Sequence[int]) -> list[int]:
    """Return the minimum tree sizes for one accepted token, for two, ...

    A smaller tree has the first nodes by path probability; nodes forced by a constraint are not counted.
    """
    if not accepted:
        return []
    rank = _ranks(tree, set(range(1, len(tree))) - tree.forced)
    return list(accumulate([rank[node] for node in accepted], max))


def nodes_needed(tree: TokenTree, accepted: Sequence[int], asked: SpeculatorSet) -> list[int]:
    """Return the sizes of `ranked_nodes` for a tree of these speculators alone.

    The list ends at the first token that none of these speculators proposed.
    """
    rank, needed = _ranks(tree, _proposed_by(tree, asked)), list[int]()
    for node in accepted:
        if node not in rank:
            break
        needed.append(max(rank[node], needed[-1] if needed else 0))
    return needed


def _proposed_by(tree: TokenTree, asked: SpeculatorSet) -> set[int]:
    """Return the nodes whose whole path these speculators proposed."""
    proposed = {child for p in tree.proposals if p.speculator in asked for child in p.children}
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
    return {node: place for place, node in enumerate(ranking, 1)}


class Shares:
    """Shares of the pool's accepted tokens for subsets of its speculators."""

    def __init__(self, everybody: SpeculatorSet) -> None:
        self.everybody = everybody
        self._paths: deque[tuple[SpeculatorSet, ...]] = deque(maxlen=_RECORDS)
        """Proposers of each token of accepted paths."""
        self._new = 0
        self._shares: dict[SpeculatorSet, float] = {}
        self.sets: list[SpeculatorSet] = [everybody]
        """Sets to choose from: single speculators, and greedily built pools."""

    def add(self, tree: TokenTree, accepted: Sequence[int]) -> None:
        """Count a tree of the whole pool."""
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

    def share(self, asked: SpeculatorSet) -> float:
        """Return a speculator set's share of the whole pool's accepted tokens.

        A path counts up to its first token that the set did not propose.
        """
        if asked not in self._shares:
            whole = sum([len(path) for path in self._paths])
            prefix = sum([_own_prefix(path, asked) for path in self._paths])
            self._shares[asked] = prefix / whole if whole and asked != self.everybody else 1.0
        return self._shares[asked]

    def _sets_worth_asking(self) -> list[SpeculatorSet]:
        pool, grown = frozenset[int](), list[SpeculatorSet]()
        while pool != self.everybody:
            pool |= {
                max(sorted(self.everybody - pool), key=lambda speculator: self.share(pool | {speculator}))
            }
            grown.append(pool)
        singles = [frozenset({speculator}) for speculator in sorted(self.everybody)]
        return list(dict.fromkeys([*singles, *grown]))


def _own_prefix(path: Sequence[SpeculatorSet], asked: SpeculatorSet) -> int:
    """Return how many first tokens of a path the speculators `asked` proposed."""
    return next((length for length, proposers in enumerate(path) if not proposers & asked), len(path))
