"""VerifyGreedy (paper, section 4.3): follow the target's own choices as far as the tree has them."""

from specinfer.tree import TokenTree
from verifier_svc.acceptance import RandomAt, Target, Verdict


def verify_greedy(tree: TokenTree, target: Target, random_at: RandomAt) -> Verdict:
    """u = root; while a child v of u has t_v = argmax P(.|u): accept v, u = v. Then add argmax P(.|u)."""
    child_of = {(int(tree.parents[node]), int(tree.token_ids[node])): node for node in range(1, len(tree))}
    accepted: list[int] = []
    node = 0
    while (child := child_of.get((node, target.best(node)))) is not None:
        accepted.append(child)
        node = child
    return Verdict(tuple(accepted), target.best(node))
