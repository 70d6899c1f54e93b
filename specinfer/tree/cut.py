"""Cuts merged trees to a node budget, without changing the output's distribution.

The verifier tries the draws below a node one after another; a rejected draw x from q leaves the residual
norm(max(0, P - q)) (paper, Algorithm 2). That gives the target's distribution if, at the moment a draw is
tried, its token is distributed as q. So whether a draw is kept may depend on what is tried before it, never
on its own token or on what is tried after it. Three rules keep that:

1. Draws are tried in the order in which the cut kept them, across speculators (`TokenTree.order`).
2. A draw's priority is fixed before its token is looked at (`specinfer.tree.draws`), and so is the
   decision to continue: the cut stops when the budget is used up, even if the next draw would repeat a kept node.
3. The candidates of a speculator that draws are taken in the order in which it lists them: a candidate may
exist,
   or have its score, only because of the tokens listed before it, so it must not be kept before them. The
   cut chooses between speculators. Those that only send points are ranked freely, by their own scores:
   nothing they send hangs on a draw.

Then the kept candidates form a sequence in which each is chosen by a function of the tokens before it, and
each draw is independent of all that comes before it. The proof by enumeration is
tests/unit/verification/test_exact.py.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from specinfer.tree.draws import Belief, draws_of, take_at_word
from specinfer.tree.token_tree import Candidate, Proposal, ProposalKind, TokenTree

Beliefs = Mapping[int, Belief]
"""Speculator -> belief about its draws, for speculators that were measured."""

Keeps = Callable[[int, float], bool]
"""Decides by kept nodes and priority whether to keep a node."""

_Offer = tuple[float, Candidate]
"""A candidate that may be kept next, after its priority."""


def truncate(tree: TokenTree, max_nodes: int, beliefs: Beliefs = MappingProxyType({})) -> TokenTree:
    """Return the best part of a tree, as in `cut_trees`."""
    return cut_trees([tree], [max_nodes], beliefs)[0]


def cut_trees(
    trees: Sequence[TokenTree],
    max_nodes: Sequence[int],
    beliefs: Beliefs = MappingProxyType({}),
    keeps: Keeps = lambda kept, priority: True,
) -> list[TokenTree]:
    """Return the best parts of merged trees, by one ranking of nodes.

    A candidate's priority is the product along its path (Sequoia, EAGLE-2) of the scores of points and of the
    chances of draws. These are known before the token of a draw, and corrected by `beliefs`.

    Args:
        trees: each merged from trees that were not merged before.
        max_nodes: per tree, maximum nodes kept, root included.
        keeps: called with one node after another, best first; the first False ends the cut.
    """
    cuts = [_Cut(tree, limit, beliefs) for tree, limit in zip(trees, max_nodes, strict=True)]
    heap = [(-priority, i, candidate) for i, cut in enumerate(cuts) for priority, candidate in cut.first()]
    heapq.heapify(heap)
    kept = 0
    while heap and keeps(kept, -heap[0][0]):
        negated, i, candidate = heapq.heappop(heap)
        if cuts[i].full:
            continue
        before = cuts[i].nodes
        for priority, uncovered in cuts[i].take(candidate, -negated):
            heapq.heappush(heap, (-priority, i, uncovered))
        kept += cuts[i].nodes - before
    return [cut.build() for cut in cuts]


def keep(tree: TokenTree, candidates: Sequence[Candidate]) -> TokenTree:
    """Return the part of a tree with these candidates, in this order.

    Args:
        candidates: parents before children, and of each proposal's children the first ones.
    """
    counts = [0] * len(tree.proposals)
    for index, _ in candidates:
        counts[index] += 1
    nodes = sorted({0} | {tree.proposals[index].children[draw] for index, draw in candidates})
    place = {old: new for new, old in enumerate(nodes)}
    renumbered: dict[int, int] = {}
    proposals: list[Proposal] = []
    for index, count in enumerate(counts):
        if count:
            renumbered[index] = len(proposals)
            proposals.append(tree.proposals[index].moved(place, count=count))
    old_parents = tree.parents.tolist()
    parents = [-1, *(place[old_parents[node]] for node in nodes[1:])]
    order = tuple([renumbered[index] for index, _ in candidates]) if tree.has_draws else ()
    return TokenTree(
        tree.token_ids[nodes], np.array(parents, np.int32), tuple(proposals), tree.scores[nodes], order
    )


def drawing_speculators(tree: TokenTree) -> set[int]:
    """Return the speculators that drew any child."""
    return {p.speculator for p in tree.proposals if p.kind is not ProposalKind.POINT}


class _Cut:
    """The kept part of one tree."""

    def __init__(self, tree: TokenTree, max_nodes: int, beliefs: Beliefs) -> None:
        self._tree, self._max_nodes, self._beliefs = tree, max_nodes, beliefs
        self._token_ids, self._scores = tree.token_ids.tolist(), tree.scores.tolist()
        self._kept: list[Candidate] = []
        self._path_probability = {0: 1.0}  # by kept node
        self._chances: dict[int, list[float]] = {}  # by index of drawn proposal
        drawing = drawing_speculators(tree)
        self._listed: dict[int, deque[Candidate]] = {speculator: deque() for speculator in drawing}
        """Drawing speculator -> its remaining candidates, in its order."""
        if drawing:
            for index, draw in tree.candidates():
                if (speculator := tree.proposals[index].speculator) in drawing:
                    self._listed[speculator].append((index, draw))
        self._below: dict[tuple[int, int], list[int]] = {}
        """(Node, speculator of points) -> its proposals there."""
        for index, proposal in enumerate(tree.proposals):
            if proposal.speculator not in drawing:
                self._below.setdefault((proposal.parent, proposal.speculator), []).append(index)

    @property
    def nodes(self) -> int:
        """Nodes kept, root included."""
        return len(self._path_probability)

    @property
    def full(self) -> bool:
        """True if no more nodes may be kept."""
        return self.nodes >= self._max_nodes

    def first(self) -> list[_Offer]:
        """Return the candidates that can be kept at the beginning."""
        speculators = dict.fromkeys(proposal.speculator for proposal in self._tree.proposals)
        return [offer for speculator in speculators for offer in self._uncovered(0, speculator)]

    def take(self, candidate: Candidate, priority: float) -> list[_Offer]:
        """Keep a candidate; return the candidates that can be kept only now."""
        index, draw = candidate
        proposal = self._tree.proposals[index]
        self._kept.append(candidate)
        self._path_probability.setdefault(proposal.children[draw], priority)
        offers = self._uncovered(proposal.children[draw], proposal.speculator)
        if proposal.speculator not in self._listed and draw + 1 < len(proposal.children):
            offers.append(self._offer((index, draw + 1)))
        return offers

    def build(self) -> TokenTree:
        """Return the kept part as a tree, its nodes in unchanged order."""
        everything = sum([len(proposal.children) for proposal in self._tree.proposals])
        if len(self._kept) == everything and not self._listed:
            return self._tree
        return keep(self._tree, self._kept)

    def _uncovered(self, node: int, speculator: int) -> list[_Offer]:
        """Return a speculator's next candidates, after one for this node."""
        if speculator not in self._listed:
            return [self._offer((index, 0)) for index in self._below.pop((node, speculator), ())]
        left = self._listed[speculator]
        return [self._offer(left.popleft())] if left else []

    def _offer(self, candidate: Candidate) -> _Offer:
        parent = self._tree.proposals[candidate[0]].parent
        return self._path_probability[parent] * self._chance(*candidate), candidate

    def _chance(self, index: int, draw: int) -> float:
        """Return a candidate's chance if its parent is accepted.

        For a draw it is independent of the token.
        """
        proposal = self._tree.proposals[index]
        if proposal.kind is ProposalKind.POINT:
            return proposal.scores[draw] if proposal.scores else float(self._scores[proposal.children[draw]])
        if index not in self._chances:
            belief = self._beliefs.get(proposal.speculator, take_at_word)
            self._chances[index] = [d.chance for _, d in draws_of(proposal, self._token_ids, belief)]
        return self._chances[index][draw]
