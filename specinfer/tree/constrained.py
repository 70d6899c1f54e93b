"""Applies constraints to trees: removes forbidden tokens, adds forced tokens.

      the-+-cat-+-sat       allowed after "the": cat, dog       the-+-cat-+-sat
          |     +-xyz       forced after "the dog": ran home        +-dog---ran---home
          +-dog
          +-xyz

Neither changes the output's distribution. The constraint masks the target, too, so a forbidden token has
probability 0 there. The allowed draws of a proposal are distributed like draws from q restricted to the allowed
tokens, in the same order, with and without replacement. So the proposal keeps the allowed draws, and q
restricted and renormalised. A forced token is a point: it is accepted if the target chooses it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specinfer.tree.builder import TreeBuilder
from specinfer.tree.token_tree import NOBODY, Proposal, ProposalKind, TokenTree

Bool = NDArray[np.bool_]


class TokenMatcher(Protocol):
    """A constraint's state after the tokens that it has read."""

    @property
    def finished(self) -> bool:
        """True if no further token is allowed."""

    def try_read(self, tokens: Sequence[int]) -> int:
        """Read tokens up to the first forbidden one; return their number."""

    def take_back(self, count: int) -> None:
        """Return to the state before the last `count` tokens."""

    def mask(self) -> Bool:
        """Return a mask [V]: True for allowed next tokens."""

    def forced(self) -> list[int]:
        """Return the tokens that must come next; empty if several may."""


def without_forbidden(tree: TokenTree, matcher: TokenMatcher) -> TokenTree:
    """Return the tree without forbidden nodes and their descendants.

    `matcher` has read the root; its state afterwards is unchanged.
    """
    drawn = {p.parent for p in tree.proposals if p.kind is not ProposalKind.POINT}
    place: dict[int, int] = {}
    allowed: dict[int, Bool] = {}
    for node in _walk(tree, matcher):
        place[node] = len(place)
        if node in drawn and not matcher.finished:
            allowed[node] = matcher.mask()
    if len(place) == len(tree) and not drawn:
        return tree
    restricted = [_restricted(proposal, place, allowed) for proposal in tree.proposals]
    number = {old: new for new, old in enumerate([i for i, p in enumerate(restricted) if p is not None])}
    nodes = list(place)
    kept = [index for index, at in tree.candidates() if tree.proposals[index].children[at] in place]
    return TokenTree(
        tree.token_ids[nodes],
        np.array([-1, *(place[parent] for parent in tree.parents[nodes[1:]].tolist())], np.int32),
        tuple([proposal for proposal in restricted if proposal is not None]),
        tree.scores[nodes],
        tuple([number[index] for index in kept]) if tree.order else (),
    )


def with_forced(
    tree: TokenTree, matcher: TokenMatcher, max_nodes: int, depth: int, chain: bool = False
) -> TokenTree:
    """Add forced tokens after the tree's nodes, the most probable nodes first.

    `matcher` has read the root; its state afterwards is unchanged.

    Args:
        max_nodes: maximum number of added nodes.
        depth: maximum depth of an added node.
        chain: whether the tree must stay a single path.
    """
    offers = sorted(_offers(tree, matcher, depth, chain), key=lambda offer: -offer.probability)
    builder = _grown_from(tree)
    for offer in offers:
        node = offer.node
        for token in offer.tokens[: max(0, len(tree) + max_nodes - len(builder))]:
            (node,) = builder.propose_points(node, [token], [1.0], NOBODY)
    if len(builder) == len(tree):
        return tree
    added = range(len(tree.proposals), builder.proposals)
    return builder.build([*tree.order, *added] if tree.order else ())


def _grown_from(tree: TokenTree) -> TreeBuilder:
    """Return a builder that contains a tree."""
    builder = TreeBuilder(tree.root_token_id)
    numbers = zip(tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist(), strict=True)
    for token, parent, score in list(numbers)[1:]:
        builder.add(parent, token, score)
    for proposal in tree.proposals:
        builder.propose(proposal)
    return builder


class _Offer(NamedTuple):
    node: int
    probability: float
    """Estimated probability that the node is accepted."""
    tokens: list[int]
    """Forced tokens that follow the node."""


def _offers(tree: TokenTree, matcher: TokenMatcher, depth: int, chain: bool) -> Iterator[_Offer]:
    """Yield nodes whose forced next tokens are missing in the tree."""
    parents, tokens, scores = tree.parents.tolist(), tree.token_ids.tolist(), tree.scores.tolist()
    edges, inner = set(zip(parents, tokens, strict=True)), set(parents)
    reached: dict[int, tuple[int, float]] = {}
    """Depth and probability of each node."""
    for node in _walk(tree, matcher):
        above = reached.get(parents[node], (-1, 1.0))
        reached[node] = above[0] + 1, above[1] * scores[node]
        if matcher.finished or (chain and node in inner):
            continue
        forced = matcher.forced()[: max(0, depth - reached[node][0])]
        if forced and (node, forced[0]) not in edges:
            yield _Offer(node, reached[node][1], forced)


def _walk(tree: TokenTree, matcher: TokenMatcher) -> Iterator[int]:
    """Yield allowed nodes, parents first.

    When a node is yielded, `matcher` has read the tokens up to the node.
    """
    tokens, parents, path = tree.token_ids.tolist(), tree.parents.tolist(), [0]
    reached = {0}
    yield 0
    for node in range(1, len(tokens)):
        if parents[node] not in reached:
            continue
        while path[-1] != parents[node]:
            path.pop()
            matcher.take_back(1)
        if matcher.finished or not matcher.try_read([tokens[node]]):
            continue
        path.append(node)
        reached.add(node)
        yield node
    matcher.take_back(len(path) - 1)


def _restricted(proposal: Proposal, place: dict[int, int], allowed: dict[int, Bool]) -> Proposal | None:
    """Return a proposal's allowed part, renumbered; None if nothing is allowed."""
    kept = [at for at, child in enumerate(proposal.children) if child in place]
    if not kept:
        return None
    ids, q = proposal.q_token_ids, proposal.q_probabilities
    if proposal.kind is not ProposalKind.POINT:
        may = allowed[proposal.parent][ids]
        ids, q = ids[may], q[may] / q[may].sum()
    return proposal._replace(
        parent=place[proposal.parent],
        children=tuple([place[proposal.children[at]] for at in kept]),
        q_token_ids=ids,
        q_probabilities=q,
        scores=tuple([proposal.scores[at] for at in kept]) if proposal.scores else (),
    )
