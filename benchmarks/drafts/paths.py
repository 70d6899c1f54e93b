"""Measure how much of a text a tree has along one path."""

from collections.abc import Sequence

from specinfer.tree import TokenTree


def followed(tree: TokenTree, tokens: Sequence[int]) -> int:
    """Return how many of some tokens behind the root a tree has along one path."""
    edges = zip(tree.parents[1:].tolist(), tree.token_ids[1:].tolist(), strict=True)
    children, node = {edge: child for child, edge in enumerate(edges, 1)}, 0
    for count, token in enumerate(tokens):
        if (node, token) not in children:
            return count
        node = children[node, token]
    return len(tokens)
