"""Naive sampling (the paper's baseline NS, section 4.3): draw from the target, look whether it is a child.

Draws exactly what plain decoding with the same seed draws, so its output is plain decoding's, token
for token, whatever is proposed. It rejects more often than multi-step sampling (Theorem 4.3).
"""

from specinfer.model.distributions import draw
from specinfer.tree import TokenTree
from verifier_svc.acceptance import RandomAt, Target, Verdict


def verify_naive(tree: TokenTree, target: Target, random_at: RandomAt) -> Verdict:
    """u = root; draw x ~ P(.|u); while x is a child of u: accept it and draw again below."""
    child_of = {(int(tree.parents[node]), int(tree.token_ids[node])): node for node in range(1, len(tree))}
    accepted: list[int] = []
    node = 0
    while True:
        token = draw(target.probabilities(node), random_at(len(accepted)))
        child = child_of.get((node, token))
        if child is None:
            return Verdict(tuple(accepted), token)
        accepted.append(child)
        node = child
