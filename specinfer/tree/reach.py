"""Limit of a tree's depth: one rule for planning, drafting and checking trees.

    context of 4, limit of 6     position   0 1 2 3 | 4 5
                                 depth            0   1 2

A node lies as many positions behind the root as it is deep, whatever lies beside it. So only the deepest node
counts; how many nodes there are is the affair of the cache and of the pass, which have bounds of their own.
"""


def most_depth(base_len: int, delta_len: int, max_context_len: int) -> int:
    """Return the greatest depth of a tree whose root is the last token of the context.

    Args:
        base_len: context tokens that are held.
        delta_len: context tokens that are added.
        max_context_len: positions that there are.
    """
    return max(0, max_context_len - base_len - delta_len)
