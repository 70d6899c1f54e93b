"""The best single path of a tree, for verifiers that check sequences only."""

from specinfer.tree.token_tree import TokenTree
from specinfer.tree.topology import depths


def best_path(tree: TokenTree, most: int) -> list[int]:
    """Return the tokens of the path of at most `most` nodes below the root that has the highest worth.

    A token counts if it and all before it are accepted, whose probability is the product of their scores s.
    So the worth of a node v is w(v) = s(v) * (1 + max of w(c) over its children c), and the path follows the
    highest worth.
    """
    parents, scores, depth = tree.parents.tolist(), tree.scores.tolist(), depths(tree.parents).tolist()
    best_child, best_worth = [0] * len(tree), [0.0] * len(tree)
    for node in range(len(tree) - 1, 0, -1):  # children come after their parents
        worth = scores[node] * (1.0 + best_worth[node])
        parent = parents[node]
        if depth[node] <= most and worth >= best_worth[parent]:
            best_child[parent], best_worth[parent] = node, worth
    path, node = [], best_child[0]
    while node:
        path.append(int(tree.token_ids[node]))
        node = best_child[node]
    return path
