"""VerifyGreedy (paper, section 4.3): follow the target's choices within the tree."""

from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Acceptance, Randomness, Target, children_by_token


def verify_greedy(tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
    """Accept the target's most probable tokens while the tree has them.

    From u = root: while u has a child v with t_v = argmax P(.|u), accept v, u = v. Then add argmax P(.|u).
    """
    children = children_by_token(tree)
    accepted: list[int] = []
    node = 0
    while (child := children.get((node, target.best(node)))) is not None:
        accepted.append(child)
        node = child
    return Acceptance(tuple(accepted), target.best(node))
