"""Multi-step speculative sampling (paper, Algorithm 2, VerifyStochastic), over merged trees.

    P(.|root): the-+-cat (drawn by A)      try cat with A's q; if rejected take A's q out of P,
                   +-dog (drawn by B)      try dog with B's q; if rejected take B's q out of P,
                                           then draw from what is left of P.

Where the paper is silent or its algorithm would not be lossless:
- Each candidate is tried with the q of the speculator that proposed it. A token proposed twice is two
  candidates.
- The paper tries children in random order. Candidates of one proposal are tried here in the order
  they were drawn: for independent draws that is the same, and without replacement it is required.
- Without replacement, a rejected token is taken out of q and q renormalised (Sequoia, algorithm 2).
- Deterministic children are point masses: accept x with probability P(x), on rejection zero x out of
  P. Testing them against the draft's softmax, as one might, is not lossless (tests show it).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from specinfer.model.distributions import draw
from specinfer.tree import Proposal, ProposalKind, TokenTree
from specinfer.tree.token_tree import Int32
from verifier_svc.acceptance import Float64, RandomAt, Target, Verdict

_ROUNDING = 1e-6
"""Share of a total below which what is left of it may be rounding, and is added up anew."""

Candidate = tuple[int, Int32, Float64]
"""A child node, and the distribution (ids [K], probabilities [K]) that its token was drawn from."""


def verify_multi_step(tree: TokenTree, target: Target, random_at: RandomAt) -> Verdict:
    """Accepts a path whose tokens, with the bonus token, are distributed as the target's (Theorem 4.2)."""
    proposals = tree.proposals_by_parent()
    accepted: list[int] = []
    node = 0
    while True:
        rng = random_at(len(accepted))
        p = target.probabilities(node)
        child = _try_children(tree, proposals.get(node, ()), p, rng)
        if child is None:
            return Verdict(tuple(accepted), draw(p, rng))
        accepted.append(child)
        node = child


def _try_children(
    tree: TokenTree, proposals: Sequence[Proposal], p: Float64, rng: np.random.Generator
) -> int | None:
    """The accepted child, or None with `p` changed in place into the residual distribution, unnormalised.

    P is p / total: a rejection then costs as much as q has tokens, not as much as the vocabulary.
    """
    total = 1.0
    for proposal in proposals:
        for child, ids, q in _candidates(tree, proposal):
            token = int(tree.token_ids[child])
            q_token = float(q[ids == token][0])
            if rng.random() * q_token * total <= p[token] and p[token] > 0:
                return child
            total = _subtract(p, total, ids, q)
            if total <= 0:
                return child  # P = q: only rounding can have rejected the token
    return None


def _candidates(tree: TokenTree, proposal: Proposal) -> Iterator[Candidate]:
    """The candidates of one proposal in draw order, each with the q it was drawn from."""
    if proposal.kind is ProposalKind.POINT:
        for child in proposal.children:
            yield child, tree.token_ids[child : child + 1], np.ones(1)
        return
    ids = proposal.q_token_ids
    q = proposal.q_probabilities.astype(np.float64)
    q /= q.sum()
    for child in proposal.children:
        yield child, ids, q
        if proposal.kind is ProposalKind.WITHOUT_REPLACEMENT:
            q = np.where(ids == tree.token_ids[child], 0.0, q)
            if q.sum() <= 0:
                return
            q = q / q.sum()


def _subtract(p: Float64, total: float, ids: Int32, q: Float64) -> float:
    """p := max(0, p - total * q) in place; returns the new total, or 0 if nothing would be left."""
    before = p[ids]
    after = np.maximum(before - total * q, 0.0)
    p[ids] = after
    left = total - float((before - after).sum())
    return left if left > _ROUNDING * total else float(p.sum())
