"""Shapes of trees: expansion vectors, limits, and functions of the parents.

Depths, children and depth-first order are pure functions of `parents` ([N], -1 for the root, parents before
children). Trees are small: plain lists are faster than arrays. One rule limits the depth in planning, drafting and
checking: a node's position, which is the root's plus the node's depth, must be below the maximum context length.

    context of 4, limit of 6     position   0 1 2 3 | 4 5
                                 depth            0   1 2
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
    """Maximum nodes besides the root; 0: no tree."""
    depth: int
    """Maximum depth of a node; the root has depth 0."""
    width: int | None = None
    """Maximum children of a node; 1: chains; None: no maximum."""
    min_path_probability: float = 0.0
    """Minimum product of scores from the root to a node."""
    tokens_per_second: float = 0.0
    """Minimum accepted tokens per second of a further level's drafting time."""

    @property
    def empty(self) -> bool:
        """True if only the root is allowed."""
        return self.nodes <= 0 or self.depth <= 0


class TreeWorth(NamedTuple):
    """Minimum gains of a further node and level, as in `TreeLimits`."""

    min_path_probability: float = 0.0
    tokens_per_second: float = 0.0


FREE = TreeWorth()


@dataclass(frozen=True, slots=True)
class ExpansionVector:
    """The paper's static tree <k1, ..., km>.

    At level i, each node of the level before gets its k_i most probable tokens as children.
    """

    widths: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "ExpansionVector":
        """Parse a vector such as "1,1,3,1"."""
        parts = [part.strip() for part in text.strip("<> ").split(",")]
        if not all(part.isdigit() and int(part) > 0 for part in parts):
            raise SettingError("expansion", text, "must be positive integers with commas, such as 1,1,3,1")
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
    """Return each node's depth [N]: its number of edges from the root."""
    result: list[int] = []
    for parent in parents.tolist():
        result.append(result[parent] + 1 if parent >= 0 else 0)
    return np.array(result, np.int32)


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return the indices of each node's children, ascending."""
    result: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent >= 0:
            result[parent].append(node)
    return result


def depth_first(parents: Sequence[int]) -> list[int]:
    """Return the node indices depth first, siblings in ascending order."""
    kids = children(parents)
    order: list[int] = []
    stack = [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += kids[node][::-1]
    return order


def depth_limit(base_len: int, delta_len: int, max_context_len: int) -> int:
    """Return the maximum depth of a tree after the context's last token.

    Args:
        base_len: number of cached context tokens.
        delta_len: number of context tokens to add.
        max_context_len: maximum context length in tokens.
    """
    return max(0, max_context_len - base_len - delta_len)


def best_path(tree: TokenTree, max_nodes: int) -> list[int]:
    """Return the path of tokens with the most expected accepted tokens.

    The path has at most `max_nodes` nodes, root excluded. A node is accepted with the product of the scores s on
    its path, so the worth of a node v is w(v) = s(v) * (1 + max of w(c) over its children c).
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
