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
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from specinfer.errors import MalformedTreeError
from specinfer.tree.builder import TreeBuilder
from specinfer.tree.token_tree import Proposal, ProposalKind, TokenTree

DRAW_PRIORS = (0.6, 0.24, 0.1, 0.04, 0.015)
"""Assumed acceptance of the first, second, ... draw of a sampled proposal, the last for all that follow.
Priors, used only to rank nodes under a budget."""

DrawPriors = Mapping[int, Sequence[float]]
"""Speculator -> measured ones, for those that have any."""


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
    builder = TreeBuilder(trees[0][1].root_token_id)
    for speculator, tree in trees:
        if tree.root_token_id != builder.token_ids[0]:
            raise MalformedTreeError(
                "tree.token_ids[0]", tree.root_token_id, f"the root must be {builder.token_ids[0]}"
            )
        _graft(builder, speculator, tree)
    merged = builder.build()
    return merged if max_nodes is None else truncate(merged, max_nodes, draw_priors)


def _graft(builder: TreeBuilder, speculator: int, tree: TokenTree) -> None:
    place = [0]
    tokens, parents, scores = tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist()
    for node in range(1, len(tokens)):
        place.append(builder.add(place[parents[node]], tokens[node], scores[node]))
    for p in tree.proposals:
        kids = tuple([place[child] for child in p.children])
        builder.propose(Proposal(place[p.parent], speculator, p.kind, kids, p.q_token_ids, p.q_probabilities))


def truncate(tree: TokenTree, max_nodes: int, draw_priors: DrawPriors = MappingProxyType({})) -> TokenTree:
    """The best part of `tree` with at most `max_nodes` nodes (root included), best first.

    A node's priority is the product of scores along its path (Sequoia, EAGLE-2), except that a
    sampled draw is ranked by its place in the draw order (see the module's docstring), by `draw_priors`
    of its speculator.
    """
    if len(tree) <= max_nodes:
        return tree
    tokens, scores = tree.token_ids.tolist(), tree.scores.tolist()
    by_parent: dict[int, list[int]] = {}
    for index, proposal in enumerate(tree.proposals):
        by_parent.setdefault(proposal.parent, []).append(index)
    builder = TreeBuilder(tokens[0])
    place = {0: 0}
    reach = {0: 1.0}  # product of scores along the path
    taken = [0] * len(tree.proposals)
    heap: list[tuple[float, int, int]] = []

    def offer(index: int, draw: int) -> None:
        p = tree.proposals[index]
        if draw < len(p.children):
            score = draw_score(p, draw, scores, draw_priors.get(p.speculator, DRAW_PRIORS))
            heapq.heappush(heap, (-reach[p.parent] * score, index, draw))

    for index in by_parent.get(0, ()):
        offer(index, 0)
    while heap and len(builder) < max_nodes:
        _, index, draw = heapq.heappop(heap)
        p = tree.proposals[index]
        child = p.children[draw]
        taken[index] = draw + 1
        if child not in place:
            place[child] = builder.add(place[p.parent], tokens[child], scores[child])
            reach[child] = reach[p.parent] * scores[child]
            for below in by_parent.get(child, ()):
                offer(below, 0)
        offer(index, draw + 1)
    for count, p in zip(taken, tree.proposals, strict=True):
        if count:
            kids = tuple([place[child] for child in p.children[:count]])
            builder.propose(
                Proposal(place[p.parent], p.speculator, p.kind, kids, p.q_token_ids, p.q_probabilities)
            )
    return builder.build()


def draw_score(proposal: Proposal, draw: int, scores: Sequence[float], priors: Sequence[float]) -> float:
    """Priority of one candidate given its parent is accepted; blind to the token of a sampled draw."""
    if proposal.kind is ProposalKind.POINT:
        return scores[proposal.children[draw]]
    return priors[min(draw, len(priors) - 1)]
