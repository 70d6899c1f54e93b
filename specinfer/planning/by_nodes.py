"""Accepted tokens and kept nodes by the nodes that were planned, as trees showed them. Pure.

A tree shows what every smaller one, or fewer speculators, would have brought: its nodes are ranked by path
probability, and the smaller tree has the first of them. Beyond the largest tree that was planned, a doubling is
expected to bring as much as the ones before, as in the rates that the paper reports.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log2

from specinfer.planning.latency import SpeculatorSet
from specinfer.tree import TokenTree

_FIRST = 0.5
"""Accepted tokens per doubling of 1 + nodes before anything was measured."""
_PRIOR = 16.0
"""Weight, in trees, of the expectation that follows from smaller sizes."""
_MEMORY = 200.0
"""Trees after which one counts 1/e of the newest."""


@dataclass(slots=True)
class _Size:
    """Sums over trees of one size, older ones counting less."""

    weight: float = 0.0
    accepted: float = 0.0
    trees: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class Brought:
    """Average outcome of trees of one size."""

    accepted: float
    kept: float


class ByNodes:
    """Means over the latest trees of one batch size."""

    def __init__(self, like: "ByNodes | None" = None) -> None:
        """Begin with the means of another batch size, with little weight."""
        self._sizes: dict[int, _Size] = {}
        for size, sums in like._sizes.items() if like else ():
            scale = _PRIOR / max(sums.trees, _PRIOR)
            self._sizes[size] = _Size(
                sums.weight * scale, sums.accepted * scale, sums.trees * scale, sums.kept * scale
            )

    def expect(self, sizes: Sequence[int]) -> list[Brought]:
        """Return the outcome expected of trees of these sizes, in rising order, for a usual text."""
        found: list[Brought] = []
        smaller, accepted, kept = 0, 0.0, 0.0
        for size in sizes:
            doublings = log2(1 + size)
            accepted *= doublings / log2(1 + smaller) if smaller else 0.0
            accepted, kept = accepted or _FIRST * doublings, kept * size / smaller if smaller else float(size)
            seen = self._sizes.get(size)
            if seen is not None:
                accepted = (seen.accepted + _PRIOR * accepted) / (seen.weight + _PRIOR)
                kept = (seen.kept + _PRIOR * kept) / (seen.trees + _PRIOR)
            if found:
                accepted, kept = max(accepted, found[-1].accepted), max(kept, found[-1].kept)
            smaller = size
            found.append(Brought(accepted, kept))
        return found

    def add(self, planned: int, kept: int, needed: Sequence[int], weight: float) -> None:
        """Count a tree.

        Args:
            planned: its most nodes.
            kept: its nodes after the cut.
            needed: sizes that a tree needs for one accepted token, for two, and so on.
            weight: tokens expected of this tree over those of a usual one.
        """
        fade = 1 - 1 / _MEMORY
        for size in sizes_up_to(planned):
            sums = self._sizes.setdefault(size, _Size())
            sums.weight = fade * sums.weight + weight
            sums.accepted = fade * sums.accepted + bisect_right(needed, size)
            sums.trees = fade * sums.trees + 1
            sums.kept = fade * sums.kept + min(kept, size)


def sizes_up_to(most: int) -> list[int]:
    """Return 1, 2, 4, ... and the largest itself."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most] if most else []


def nodes_needed(tree: TokenTree, accepted: Sequence[int], asked: SpeculatorSet) -> list[int]:
    """Return the sizes that a tree of these speculators alone needs for one accepted token, two, and so on.

    The list ends at the first token that none of them proposed. Nodes are taken by their path probabilities.
    """
    rank, needed = _ranks(tree, _proposed_by(tree, asked)), list[int]()
    for node in accepted:
        if node not in rank:
            break
        needed.append(max(rank[node], needed[-1] if needed else 0))
    return needed


def ranked_nodes(tree: TokenTree, accepted: Sequence[int]) -> list[int]:
    """Return the sizes of `nodes_needed` for the whole tree; nodes that a constraint forces take no place."""
    if not accepted:
        return []
    rank = _ranks(tree, set(range(1, len(tree))) - tree.forced)
    return list(accumulate([rank[node] for node in accepted], max))


def _proposed_by(tree: TokenTree, asked: SpeculatorSet) -> set[int]:
    """Return the nodes to which these speculators alone lead."""
    own = {child for p in tree.proposals if p.speculator in asked for child in p.children}
    kept = {0}
    for node, parent in enumerate(tree.parents.tolist()):
        if node in own and parent in kept:
            kept.add(node)
    return kept - {0}


def _ranks(tree: TokenTree, nodes: set[int]) -> dict[int, int]:
    """Return the places, from 1, of some nodes by falling path probability."""
    chances: list[float] = []
    for parent, score in zip(tree.parents.tolist(), tree.scores.tolist(), strict=True):
        chances.append(score * chances[parent] if parent >= 0 else 1.0)
    ranking = sorted(nodes, key=lambda node: (-chances[node], node))
    return {node: place for place, node in enumerate(ranking, 1)}
