"""Naive sampling (the paper's baseline NS, section 4.3): draw from the target, follow equal children.

Draws exactly what plain decoding with the same seed draws, so its output is plain decoding's, token
for token, whatever is proposed. It rejects draws more often than multi-step sampling (Theorem 4.3).
"""

from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Randomness, Target, Verdict, children_by_token


def verify_naive(tree: TokenTree, target: Target, randomness: Randomness) -> Verdict:
    """Draw x ~ P(.|u) from u = root; while x is a child of u, accept it and draw again below."""
    children = children_by_token(tree)
    accepted: list[int] = []
    node = 0
    while True:
        token = target.choose(node, randomness.noise(len(accepted)))
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(accepted), token)
        accepted.append(child)
        node = child
