"""Merging the trees of several speculators (paper, Definition 3.2) and cutting one to a node budget.

The merge is the trie of all root-to-node paths. Every proposal keeps the distribution it was drawn
from, so that the verifier can try each candidate against the q of the speculator that proposed it.

Cutting is the delicate part. Whether a *sampled* candidate stays must not depend on the token drawn:
keeping the likely draws and dropping the unlikely ones would change the distribution they come from,
and the output with it. So candidates of one proposal are taken in draw order, a draw's priority is
fixed before its token is looked at (`specinfer.tree.draws`), and the cut stops when the budget is used up
even if the next draw would have repeated a kept node. (Stopping on what was drawn *before* is fine: each
later draw is still distributed as q.)

What hangs on a draw may not come before it either. If speculator B's point x is kept first, and A's
next draw is x, too, A has a subtree below x: were it to compete at once, it could use up the budget before
A's draw is looked at, and so remove that draw just if it is x. So a speculator's candidates below a node
compete only once its own candidate for that node is kept, and a point's score is never raised by a draw.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from specinfer.errors import MalformedTreeError
from specinfer.tree.builder import TreeBuilder
from specinfer.tree.draws import Belief, draws_of, take_at_word
from specinfer.tree.token_tree import ProposalKind, TokenTree

Beliefs = Mapping[int, Belief]
"""Speculator -> what to believe of its draws, for those that were measured."""

Worth = Callable[[int, float], bool]


def merge_trees(
    trees: Sequence[tuple[int, TokenTree]],
    max_nodes: int | None = None,
    beliefs: Beliefs = MappingProxyType({}),
) -> TokenTree:
    """Merges (speculator index, tree) pairs that share their root.

    Args:
        trees: at least one; proposals are relabelled with the speculator's index.
        max_nodes: most nodes of the result, root included; None for no limit.
        beliefs: see `truncate`.

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
    return merged if max_nodes is None else truncate(merged, max_nodes, beliefs)


def _all_by(speculator: int, tree: TokenTree) -> bool:
    return all(proposal.speculator == speculator for proposal in tree.proposals)


def _graft(builder: TreeBuilder, speculator: int, tree: TokenTree) -> None:
    place = [0]
    tokens, parents, scores = tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist()
    points = {c for p in tree.proposals if p.kind is ProposalKind.POINT for c in p.children}
    for node in range(1, len(tokens)):
        score = scores[node] if node in points else 0.0
        place.append(builder.add(place[parents[node]], tokens[node], score))
    for p in tree.proposals:
        builder.propose(p.moved(place, speculator))


def truncate(tree: TokenTree, max_nodes: int, beliefs: Beliefs = MappingProxyType({})) -> TokenTree:
    """The best part of `tree` with at most `max_nodes` nodes (root included), best first.

    A node's priority is the product along its path (Sequoia, EAGLE-2) of the scores of points and of the
    chances of draws, which are told before a draw's token is looked at and are corrected by `beliefs`.
    """
    return cut_trees([tree], [max_nodes], beliefs)[0]


def cut_trees(
    trees: Sequence[TokenTree],
    max_nodes: Sequence[int],
    beliefs: Beliefs = MappingProxyType({}),
    worth: Worth = lambda kept, priority: True,
) -> list[TokenTree]:
    """The best parts of several trees: one ranking over all, so that nodes go where they are worth most.

    Args:
        max_nodes: per tree, most nodes kept, root included.
        worth: called as `worth(nodes kept so far in all trees, priority of the next)`; the first no ends
            the cut. It is asked in order and before a candidate is looked at, so that a sampled
            candidate stays or goes whatever its token is.
    """
    cuts = [_Cut(tree, most, beliefs) for tree, most in zip(trees, max_nodes, strict=True)]
    heap = [(-priority, i, index, draw) for i, c in enumerate(cuts) for priority, index, draw in c.first()]
    heapq.heapify(heap)
    kept = 0
    while heap and worth(kept, -heap[0][0]):
        negated, i, index, draw = heapq.heappop(heap)
        if cuts[i].full:
            continue
        before = cuts[i].nodes
        for priority, below, first in cuts[i].take(index, draw, -negated):
            heapq.heappush(heap, (-priority, i, below, first))
        kept += cuts[i].nodes - before
    return [cut.build() for cut in cuts]


class _Cut:
    """The kept part of one tree. Candidates are (priority, index of the proposal, draw)."""

    def __init__(self, tree: TokenTree, most: int, beliefs: Beliefs) -> None:
        self._tree, self._most, self._beliefs = tree, most, beliefs
        self._token_ids, self._scores = tree.token_ids.tolist(), tree.scores.tolist()
        self._below: dict[tuple[int, int], list[int]] = {}
        """(Node, speculator) -> its proposals there that do not compete yet."""
        for index, proposal in enumerate(tree.proposals):
            self._below.setdefault((proposal.parent, proposal.speculator), []).append(index)
        self._reach = {0: 1.0}  # of every node kept: its priority, the chance that its path is accepted
        self._taken = [0] * len(tree.proposals)
        self._chances: dict[int, list[float]] = {}  # of sampled proposals, by their index

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
        return [
            offer for i, p in enumerate(self._tree.proposals) if p.parent == 0 for offer in self._offer(i, 0)
        ]

    def take(self, index: int, draw: int, priority: float) -> list[tuple[float, int, int]]:
        """Keeps a candidate; returns those that it uncovers."""
        proposal = self._tree.proposals[index]
        child = proposal.children[draw]
        self._taken[index] = draw + 1
        offers = self._offer(index, draw + 1)
        self._reach.setdefault(child, priority)
        for below in self._below.pop((child, proposal.speculator), ()):
            offers += self._offer(below, 0)
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
        proposal = self._tree.proposals[index]
        if draw >= len(proposal.children):
            return []
        return [(self._reach[proposal.parent] * self._chance(index, draw), index, draw)]

    def _chance(self, index: int, draw: int) -> float:
        """That a candidate is accepted if its parent is; blind to the token of a sampled draw."""
        proposal = self._tree.proposals[index]
        if proposal.kind is ProposalKind.POINT:
            score: float = self._scores[proposal.children[draw]]
            return score
        if index not in self._chances:
            belief = self._beliefs.get(proposal.speculator, take_at_word)
            self._chances[index] = [d.chance for _, d in draws_of(proposal, self._token_ids, belief)]
        return self._chances[index][draw]
