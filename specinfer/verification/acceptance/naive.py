"""Naive sampling (paper's baseline NS, section 4.3): sample, then follow the child.

The output equals plain decoding with the same seed, for any tree. Draws are rejected more often than in
multi-step sampling (Theorem 4.3).
"""

from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Acceptance, Randomness, Target, children_by_token


def verify_naive(tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
    """Sample x ~ P(.|u) from the root; continue at u's child x."""
    children = children_by_token(tree)
    accepted: list[int] = []
    node = 0
    while True:
        token = target.choose(node, randomness.noise(len(accepted)))
        child = children.get((node, token))
        if child is None:
            return Acceptance(tuple(accepted), token)
        accepted.append(child)
        node = child
