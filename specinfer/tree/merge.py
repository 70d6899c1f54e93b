"""Merging the trees of several speculators (paper, Definition 3.2) and cutting one to a node budget.

The merge is the trie of all root-to-node paths. Every proposal keeps the distribution it was drawn
from, so that the verifier can try each candidate against the q of the speculator that proposed it.

Cutting is the delicate part. Whether a *sampled* candidate stays must not depend on the token drawn:
keeping the likely draws and dropping the unlikely ones would change the distribution they come from,
and the output with it. So candidates of one proposal are taken in draw order, a draw's priority is
fixed before its token is looked at, and the cut stops when the budget is used up even if the next draw
would have repeated a kept node. (Stopping on what was drawn *before* is fine: each later draw is still
distributed as q.)
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from specinfer.errors import MalformedTreeError
from specinfer.tree.builder import TreeBuilder
from specinfer.tree.token_tree import Proposal, ProposalKind, TokenTree

DRAW_PRIORS = (0.6, 0.24, 0.1, 0.04, 0.015)
"""Assumed acceptance of the first, second, ... draw of a sampled proposal, the last for all that follow.
Priors, used only to rank nodes under a budget."""

DrawPriors = Mapping[int, Sequence[float]]
"""Speculator -> measured ones, for those that have any."""

Worth = Callable[[int, float], bool]


def merge_trees(
    trees: Sequence[tuple[int, TokenTree]],
    max_nodes: int | None = None,
    draw_priors: DrawPriors = MappingProxyType({}),
) -> TokenTree:
    """Merges (speculator index, tree) pairs that share their root.

    Args:
        trees: at least one; proposals are relabelled with the speculator's index.
        max_nodes: most nodes of the result, root included; None for no limit.
        draw_priors: see `truncate`.

    Raises:
        MalformedTreeError: if the roots differ.
    """
    if max_nodes is None and len(trees) == 1 and _all_by(*trees[0]):
        return trees[0][1]
    builder = TreeBuilder(trees[0][1].root_token_id)
    for speculator, tree in trees:
        if tree.root_token_id != builder.token_ids[0]:
            raise MalformedTreeError(
                "tree.token_ids[0]", tree.root_token_id, f"the root must be {builder.token_ids[0]}"
            )
        _graft(builder, speculator, tree)
    merged = builder.build()
    return merged if max_nodes is None else truncate(merged, max_nodes, draw_priors)


def _all_by(speculator: int, tree: TokenTree) -> bool:
    return all(proposal.speculator == speculator for proposal in tree.proposals)


def _graft(builder: TreeBuilder, speculator: int, tree: TokenTree) -> None:
    place = [0]
    tokens, parents, scores = tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist()
    for node in range(1, len(tokens)):
        place.append(builder.add(place[parents[node]], tokens[node], scores[node]))
    for p in tree.proposals:
        builder.propose(p.moved(place, speculator))


def truncate(tree: TokenTree, max_nodes: int, draw_priors: DrawPriors = MappingProxyType({})) -> TokenTree:
    """The best part of `tree` with at most `max_nodes` nodes (root included), best first.

    A node's priority is the product of scores along its path (Sequoia, EAGLE-2), except that a
    sampled draw is ranked by its place in the draw order (see the module's docstring), by `draw_priors`
    of its speculator.
    """
    return cut_trees([tree], [max_nodes], draw_priors)[0]


def cut_trees(
    trees: Sequence[TokenTree],
    max_nodes: Sequence[int],
    draw_priors: DrawPriors = MappingProxyType({}),
    worth: Worth = lambda kept, priority: True,
) -> list[TokenTree]:
    """The best parts of several trees: one ranking over all, so that nodes go where they are worth most.

    Args:
        max_nodes: per tree, most nodes kept, root included.
        worth: called as `worth(nodes kept so far in all trees, priority of the next)`; the first no ends
            the cut. It is asked in order and before a candidate is looked at, so that a sampled
            candidate stays or goes whatever its token is.
    """
    cuts = [_Cut(tree, most, draw_priors) for tree, most in zip(trees, max_nodes, strict=True)]
    heap = [(-priority, i, index, draw) for i, c in enumerate(cuts) for priority, index, draw in c.first()]
    heapq.heapify(heap)
    kept = 0
    while heap and worth(kept, -heap[0][0]):
        _, i, index, draw = heapq.heappop(heap)
        if cuts[i].full:
            continue
        before = cuts[i].nodes
        for priority, below, first in cuts[i].take(index, draw):
            heapq.heappush(heap, (-priority, i, below, first))
        kept += cuts[i].nodes - before
    return [cut.build() for cut in cuts]


class _Cut:
    """The kept part of one tree. Candidates are (priority, index of the proposal, draw)."""

    def __init__(self, tree: TokenTree, most: int, priors: DrawPriors) -> None:
        self._tree, self._most, self._priors = tree, most, priors
        self._scores = tree.scores.tolist()
        self._below: dict[int, list[int]] = {}
        for index, proposal in enumerate(tree.proposals):
            self._below.setdefault(proposal.parent, []).append(index)
        self._reach = {0: 1.0}  # of every node kept, the product of scores along its path
        self._taken = [0] * len(tree.proposals)

    @property
    def nodes(self) -> int:
        """Nodes kept, root included."""
        return len(self._reach)

    @property
    def full(self) -> bool:
        """Whether no more may be kept."""
        return len(self._reach) >= self._most

    def first(self) -> list[tuple[float, int, int]]:
        """The candidates right below the root."""
        return [offer for index in self._below.get(0, ()) for offer in self._offer(index, 0)]

    def take(self, index: int, draw: int) -> list[tuple[float, int, int]]:
        """Keeps a candidate; returns those that it uncovers."""
        proposal = self._tree.proposals[index]
        child = proposal.children[draw]
        self._taken[index] = draw + 1
        offers = self._offer(index, draw + 1)
        if child not in self._reach:
            self._reach[child] = self._reach[proposal.parent] * self._scores[child]
            offers += [offer for below in self._below.get(child, ()) for offer in self._offer(below, 0)]
        return offers

    def build(self) -> TokenTree:
        """The kept part as a tree, its nodes in their old order: parents still come first."""
        tree, order = self._tree, sorted(self._reach)
        counted = list(zip(tree.proposals, self._taken, strict=True))
        if len(order) == len(tree) and all(count == len(p.children) for p, count in counted):
            return tree
        place = {old: new for new, old in enumerate(order)}
        old_parents = tree.parents.tolist()
        parents = [-1, *(place[old_parents[node]] for node in order[1:])]
        proposals = [p.moved(place, count=count) for p, count in counted if count]
        return TokenTree(
            tree.token_ids[order], np.array(parents, np.int32), tuple(proposals), tree.scores[order]
        )

    def _offer(self, index: int, draw: int) -> list[tuple[float, int, int]]:
        p = self._tree.proposals[index]
        if draw >= len(p.children):
            return []
        score = draw_score(p, draw, self._scores, self._priors.get(p.speculator, DRAW_PRIORS))
        return [(self._reach[p.parent] * score, index, draw)]


def draw_score(proposal: Proposal, draw: int, scores: Sequence[float], priors: Sequence[float]) -> float:
    """Priority of one candidate given its parent is accepted; blind to the token of a sampled draw."""
    if proposal.kind is ProposalKind.POINT:
        return scores[proposal.children[draw]]
    return priors[min(draw, len(priors) - 1)]
