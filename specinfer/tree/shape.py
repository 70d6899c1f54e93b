"""Shapes of trees: expansion vectors, limits, and functions of the parents.

Depths, children and depth-first order are pure functions of `parents` ([N], -1 for the root, parents before
children). Trees are small: plain lists are quicker than arrays. One rule limits the depth for planning, drafting and
checking trees:

    context of 4, limit of 6     position   0 1 2 3 | 4 5
                                 depth            0   1 2

A node is as many positions after the root as it is deep, so only the deepest node counts; the number of nodes is
bounded by the cache and by the pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specinfer.errors import SettingError
from specinfer.tree.token_tree import Int32, TokenTree


@dataclass(frozen=True, slots=True)
class TreeLimits:
    nodes: int
    """Maximum nodes besides the root; 0 means no tree."""
    depth: int
    """Depth of the deepest node; the root has depth 0."""
    width: int | None = None
    """Maximum children of a node; 1 is sequence speculation, None unlimited."""
    min_path_probability: float = 0.0
    """Minimum path probability: nodes below it are hardly ever verified."""
    tokens_per_second: float = 0.0
    """Minimum speed of further levels, equal to the step's; 0: unknown."""

    @property
    def empty(self) -> bool:
        """True if nothing may be drafted."""
        return self.nodes <= 0 or self.depth <= 0


class TreeWorth(NamedTuple):
    """Last fields of `TreeLimits`: the minimum gain of nodes and levels."""

    min_path_probability: float = 0.0
    tokens_per_second: float = 0.0


FREE = TreeWorth()


@dataclass(frozen=True, slots=True)
class ExpansionVector:
    """The paper's static tree <k1, ..., km>.

    At step i, every leaf expands its top k_i tokens.
    """

    widths: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "ExpansionVector":
        """Parse a vector such as "1,1,3,1".

        Raises:
            SettingError: if it is not a list of positive integers.
        """
        parts = [part.strip() for part in text.strip("<> ").split(",")]
        if not all(part.isdigit() and int(part) > 0 for part in parts):
            raise SettingError("expansion", text, "must be positive integers such as 1,1,3,1")
        return cls(tuple(map(int, parts)))

    @property
    def nodes(self) -> int:
        """Nodes of the full tree besides the root."""
        total, leaves = 0, 1
        for width in self.widths:
            leaves *= width
            total += leaves
        return total


def depths(parents: Int32) -> Int32:
    """Return the distance [N] of each node from the root."""
    result: list[int] = []
    for parent in parents.tolist():
        result.append(result[parent] + 1 if parent >= 0 else 0)
    return np.array(result, np.int32)


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return children of every node, in index order."""
    result: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            result[parent].append(node)
    return result


def depth_first(parents: Sequence[int]) -> list[int]:
    """Return the node indices [N] in depth-first order, siblings in index order."""
    kids = children(parents)
    order: list[int] = []
    stack = [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += kids[node][::-1]
    return order


def depth_limit(base_len: int, delta_len: int, max_context_len: int) -> int:
    """Return the maximum depth of a tree below the context's last token.

    Args:
        base_len: cached context tokens.
        delta_len: context tokens that are added.
        max_context_len: positions that there are.
    """
    return max(0, max_context_len - base_len - delta_len)


def best_path(tree: TokenTree, max_nodes: int) -> list[int]:
    """Return the tokens of the best path of at most `max_nodes` nodes.

    A token counts if it and all before it are accepted; that probability is the product of their scores s. So
    the worth of a node v is w(v) = s(v) * (1 + max of w(c) over its children c), and the path follows the
    highest worth.
    """
    parents, scores, depth = tree.parents.tolist(), tree.scores.tolist(), depths(tree.parents).tolist()
    best_child, best_worth = [0] * len(tree), [0.0] * len(tree)
    for node in range(len(tree) - 1, 0, -1):  # children come after their parents
        worth = scores[node] * (1.0 + best_worth[node])
        parent = parents[node]
        if depth[node] <= max_nodes and worth >= best_worth[parent]:
            best_child[parent], best_worth[parent] = node, worth
    path, node = [], best_child[0]
    while node:
        path.append(int(tree.token_ids[node]))
        node = best_child[node]
    return path
