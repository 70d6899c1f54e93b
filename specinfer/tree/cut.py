"""Cuts merged trees to a node budget, without changing the output's distribution.

The verifier tries the draws below a node one after another; a rejected draw x from q leaves the residual
norm(max(0, P - q)) (paper, Algorithm 2). The output has the target's distribution if each draw's token is
distributed as q when the draw is tried. So the decision to keep a draw may depend on candidates tried before
the draw, never on its own token or on later candidates. Three rules ensure that:

1. Draws are tried in the order in which the cut kept them, across speculators (`TokenTree.order`).
2. A draw's priority is computed without its token (`specinfer.tree.draws`). So is the decision to continue:
   the cut stops when the budget is used up, even if the next draw would repeat a kept node.
3. The candidates of a speculator that draws are kept in the order in which it lists them: earlier tokens of the
   list may have caused a candidate or its score, so the candidate must not be kept before them. The cut only
   chooses between speculators. Candidates of speculators that never draw depend on no draw: the cut ranks them
   freely, by their own scores.

Then each kept candidate is chosen by a function of the tokens kept before it, and each draw is independent of
those tokens. tests/unit/verification/test_exact.py proves it by enumeration.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from specinfer.tree.draws import Belief, draws_of, uncorrected
from specinfer.tree.token_tree import Candidate, Proposal, ProposalKind, TokenTree

Beliefs = Mapping[int, Belief]
"""Speculator -> measured correction of its draws' expected acceptance."""

Keeps = Callable[[int, float], bool]
"""(number of kept nodes, next node's priority) -> whether to keep it."""

_Offer = tuple[float, Candidate]
"""(Priority, candidate); its parent node is kept."""


def truncate(tree: TokenTree, max_nodes: int, beliefs: Beliefs = MappingProxyType({})) -> TokenTree:
    """Return the best `max_nodes` nodes of a tree, root included; see `cut_trees`."""
    return cut_trees([tree], [max_nodes], beliefs)[0]


def cut_trees(
    trees: Sequence[TokenTree],
    max_nodes: Sequence[int],
    beliefs: Beliefs = MappingProxyType({}),
    keeps: Keeps = lambda kept, priority: True,
) -> list[TokenTree]:
    """Cut merged trees to their best nodes, in one common ranking.

    A candidate's priority is a product along its path (Sequoia, EAGLE-2): of the scores of points, and of the
    expected acceptances of draws, which `beliefs` correct and which do not depend on the drawn tokens.

    Args:
        trees: results of `merge_trees`, not merged twice.
        max_nodes: maximum nodes of each tree, root included.
        keeps: called before each node, best first; the first False ends the cut.
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
    """Return the tree that has only these candidates, in this order.

    Args:
        candidates: parents before children; a proposal's candidates without gaps, from its first one on.
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
    """Return the indices of speculators that have drawn nodes of the tree."""
    return {p.speculator for p in tree.proposals if p.kind is not ProposalKind.POINT}


class _Cut:
    """The kept part of one tree, and candidates with kept parents."""

    def __init__(self, tree: TokenTree, max_nodes: int, beliefs: Beliefs) -> None:
        self._tree, self._max_nodes, self._beliefs = tree, max_nodes, beliefs
        self._token_ids, self._scores = tree.token_ids.tolist(), tree.scores.tolist()
        self._kept: list[Candidate] = []
        self._path_probability = {0: 1.0}  # by kept node
        self._chances: dict[int, list[float]] = {}  # by index of drawn proposal
        drawing = drawing_speculators(tree)
        self._listed: dict[int, deque[Candidate]] = {speculator: deque() for speculator in drawing}
        """Speculator that draws -> its remaining candidates, in order."""
        if drawing:
            for index, draw in tree.candidates():
                if (speculator := tree.proposals[index].speculator) in drawing:
                    self._listed[speculator].append((index, draw))
        self._below: dict[tuple[int, int], list[int]] = {}
        """(Parent, speculator that never draws) -> indices of its proposals."""
        for index, proposal in enumerate(tree.proposals):
            if proposal.speculator not in drawing:
                self._below.setdefault((proposal.parent, proposal.speculator), []).append(index)

    @property
    def nodes(self) -> int:
        """Number of kept nodes, root included."""
        return len(self._path_probability)

    @property
    def full(self) -> bool:
        """True if the tree has its maximum of nodes."""
        return self.nodes >= self._max_nodes

    def first(self) -> list[_Offer]:
        """Return the candidates that may be kept first."""
        speculators = dict.fromkeys(proposal.speculator for proposal in self._tree.proposals)
        return [offer for speculator in speculators for offer in self._uncovered(0, speculator)]

    def take(self, candidate: Candidate, priority: float) -> list[_Offer]:
        """Keep a candidate; return the candidates that may then be kept."""
        index, draw = candidate
        proposal = self._tree.proposals[index]
        self._kept.append(candidate)
        self._path_probability.setdefault(proposal.children[draw], priority)
        offers = self._uncovered(proposal.children[draw], proposal.speculator)
        if proposal.speculator not in self._listed and draw + 1 < len(proposal.children):
            offers.append(self._offer((index, draw + 1)))
        return offers

    def build(self) -> TokenTree:
        """Return the kept part as a tree, in unchanged node order."""
        everything = sum([len(proposal.children) for proposal in self._tree.proposals])
        if len(self._kept) == everything and not self._listed:
            return self._tree
        return keep(self._tree, self._kept)

    def _uncovered(self, node: int, speculator: int) -> list[_Offer]:
        """Return the candidates that may be kept once `node` is kept."""
        if speculator not in self._listed:
            return [self._offer((index, 0)) for index in self._below.pop((node, speculator), ())]
        left = self._listed[speculator]
        return [self._offer(left.popleft())] if left else []

    def _offer(self, candidate: Candidate) -> _Offer:
        parent = self._tree.proposals[candidate[0]].parent
        return self._path_probability[parent] * self._chance(*candidate), candidate

    def _chance(self, index: int, draw: int) -> float:
        """Return the expected acceptance of a candidate whose parent is accepted.

        For a draw it does not depend on the drawn token.
        """
        proposal = self._tree.proposals[index]
        if proposal.kind is ProposalKind.POINT:
            return proposal.scores[draw] if proposal.scores else float(self._scores[proposal.children[draw]])
        if index not in self._chances:
            belief = self._beliefs.get(proposal.speculator, uncorrected)
            self._chances[index] = [d.chance for _, d in draws_of(proposal, self._token_ids, belief)]
        return self._chances[index][draw]
