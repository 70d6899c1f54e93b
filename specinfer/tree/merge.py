"""Merges speculators' trees (paper, Definition 3.2): the trie of all paths.

Every proposal keeps the distribution from which it was drawn, so that the verifier can try each candidate against
its speculator's q. A token from two speculators is one node and two candidates.
"""

from collections.abc import Sequence
from types import MappingProxyType

from specinfer.errors import MalformedTreeError
from specinfer.tree.builder import TreeBuilder
from specinfer.tree.cut import Beliefs, truncate
from specinfer.tree.token_tree import ProposalKind, TokenTree


def merge_trees(
    trees: Sequence[tuple[int | None, TokenTree]],
    max_nodes: int | None = None,
    beliefs: Beliefs = MappingProxyType({}),
) -> TokenTree:
    """Merge trees with the same root, each with its speculator's index.

    The candidates of the first tree come first, then those of the second, each in their own order;
    `cut_trees` interleaves them. A node's score is the maximum over its speculators. If any speculator draws,
    each point also keeps its own speculator's score: a drawn token may have caused another speculator's score.

    Args:
        trees: at least one. Index None: the tree is merged already, and its proposals keep their indices.
        max_nodes: maximum nodes of the result, root included; None: no maximum.
        beliefs: see `cut_trees`.
    """
    if max_nodes is None and len(trees) == 1 and _all_by(*trees[0]):
        return trees[0][1]
    builder, order = TreeBuilder(trees[0][1].root_token_id), list[int]()
    drawn = any(tree.has_draws for _, tree in trees)
    for speculator, tree in trees:
        if tree.root_token_id != builder.token_ids[0]:
            raise MalformedTreeError(
                "tree.token_ids[0]",
                tree.root_token_id,
                f"must be {builder.token_ids[0]}, the first tree's root",
            )
        before = builder.proposals
        _graft(builder, speculator, tree, drawn)
        order += [before + index for index, _ in tree.candidates()]
    merged = builder.build(order if drawn else ())
    return merged if max_nodes is None else truncate(merged, max_nodes, beliefs)


def _all_by(speculator: int | None, tree: TokenTree) -> bool:
    return speculator is None or all(proposal.speculator == speculator for proposal in tree.proposals)


def _graft(builder: TreeBuilder, speculator: int | None, tree: TokenTree, own_scores: bool) -> None:
    place = [0]
    tokens, parents, scores = tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist()
    points = {c for p in tree.proposals if p.kind is ProposalKind.POINT for c in p.children}
    for node in range(1, len(tokens)):
        score = scores[node] if node in points else 0.0
        place.append(builder.add(place[parents[node]], tokens[node], score))
    for p in tree.proposals:
        moved = p.moved(place, p.speculator if speculator is None else speculator)
        if own_scores and p.kind is ProposalKind.POINT:
            moved = moved._replace(scores=tuple([scores[child] for child in p.children]))
        builder.propose(moved)
