"""Consequences of the parents alone: depths, children, depth-first order.

Pure functions of `parents` ([N], -1 for the root, parents before children). Trees are small: plain lists
are quicker than arrays.
"""

from collections.abc import Sequence

import numpy as np

from specinfer.tree.token_tree import Int32


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
