"""Multi-step speculative sampling (paper, Algorithm 2, VerifyStochastic), over merged trees.

    P(.|root): the-+-cat (drawn by A)      try cat with A's q; if rejected take A's q out of P,
                   +-dog (drawn by B)      try dog with B's q; if rejected take B's q out of P,
                   +-bird (a point)        then draw from what is left of P: perhaps bird.

Where the paper is silent or its algorithm would not be lossless:
- Each candidate is tried with the q of the speculator that proposed it. A token that two speculators propose is
  two candidates.
- The paper tries children in random order. Here draws are tried in the order in which the cut kept them
  (`TokenTree.order`), across speculators: a draw may be in the tree because of draws kept before it, so these
  must be tried first (`specinfer.tree.cut`).
- Without replacement, a rejected token is removed from q and q renormalised (Sequoia, algorithm 2).
- Points are not tried. A token is sampled from the residual P, and a point with this token is accepted, so a point
  x has probability P(x). A test against the draft's softmax is not lossless (tests show it). The token depends on
  noise that drafters may know (`specinfer.model.sampling.noise`): in a tree of points only, the output equals
  plain decoding, token for token.
"""

from collections.abc import Sequence

import numpy as np

from specinfer.model.sampling.choices import Excerpt
from specinfer.tree import Candidate, ProposalKind, TokenTree
from specinfer.verification.acceptance import Acceptance, Float64, Randomness, Target, children_by_token
from specinfer.verification.acceptance.residual import normalised, subtract, without


def verify_multi_step(tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
    """Accept a path; its tokens have the target's distribution (Theorem 4.2)."""
    draws, children = tree.draws_by_parent(), children_by_token(tree)
    accepted: list[int] = []
    node = 0
    while True:
        child, noise, drawn = None, randomness.noise(len(accepted)), draws.get(node)
        if drawn:
            p = target.probabilities(node)
            child = _try_draws(tree, drawn, p, randomness.stream(len(accepted)))
        if child is None:
            token = noise.choose(p) if drawn else target.choose(node, noise)
            child = children.get((node, token))
        if child is None:
            return Acceptance(tuple(accepted), token)
        accepted.append(child)
        node = child


def _try_draws(
    tree: TokenTree, draws: Sequence[Candidate], p: Float64 | Excerpt, rng: np.random.Generator
) -> int | None:
    """Return the first accepted child; None after rejecting all draws.

    Rejections change `p` into the residual. It is not normalised (P = p / total), so that a rejection costs O(len(q)),
    not O(vocabulary).
    """
    total, left = 1.0, dict[int, Float64]()
    for index, place in draws:
        proposal = tree.proposals[index]
        child, ids = proposal.children[place], proposal.q_token_ids
        token = int(tree.token_ids[child])
        q = left[index] if index in left else normalised(proposal.q_probabilities.astype(np.float64))
        q_token = float(q[ids == token][0])
        if rng.random() * q_token * total <= p[token] and p[token] > 0:
            return child
        total = subtract(p, total, ids, q)
        if total <= 0:
            return child  # P = q: only rounding can have rejected the token
        if proposal.kind is ProposalKind.WITHOUT_REPLACEMENT:
            q = without(q, ids, token)
        left[index] = q
    return None
