"""Traversal verification (Weng et al., arXiv 2505.12398) of merged trees.

Each draw has its own q, and the tree may have points, too. A path of draws is accepted as a whole: a node that
would be rejected alone may be accepted together with draws below it. State at a node u of the tried path:

    p   the remaining probability to accept u or a node below it, given that u was drawn
    M   the remaining distribution of the token after u; at first P(.|u)

At the root p = 1. Each draw c of u, drawn from q, is visited with p_c = min(1, p M[c] / q[c]), and then all draws
below c. If none is accepted, the remainder of u is R = max(0, p M - q), with sum s:

    p := s / (s + 1 - p),    M := R / s

After its last draw, u is accepted with probability p, together with a token that noise chooses from M. If u has
a child with this token, the child is visited with p = 1; otherwise the token is the bonus. If u is rejected, its
parent continues.

Proof of losslessness: c is accepted with mass q[c] min(1, p M[c] / q[c]) = min(q[c], p M[c]), for any draws below
c, so R is the missing mass; no draw is accepted with probability 1 - p + s. Each draw may have another q, which
covers draws without replacement (q without the tokens drawn before) and several speculators. On chains this is
block verification (Sun et al., arXiv 2403.10444).

- Draws below a node are tried in the order in which the cut kept them, as in `multi_step`. No draw is visited
  twice: c can be rejected only if p M[c] < q[c], and then R[c] = 0.
- Points are not tried: a point is accepted if noise chooses its token. A tree of points only gives the output of
  plain decoding.
- P is computed only at visited nodes with draws, and where a token is chosen.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from specinfer.model.sampling.choices import Excerpt
from specinfer.model.sampling.noise import Noise
from specinfer.tree import ProposalKind, TokenTree
from specinfer.tree.token_tree import Int32
from specinfer.verification.acceptance import Acceptance, Float64, Randomness, Target, children_by_token
from specinfer.verification.acceptance.residual import normalised, subtract, without
from specinfer.verification.target import LateNodeError


def verify_traversal(tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
    """Accept a path, so that the tokens have the target's distribution."""
    draws, children = _Draws(tree), children_by_token(tree)
    rng = randomness.stream(0)
    path = [_Visit(0, 1.0)]
    while True:
        at = path[-1]
        if at.p > 0 and (draw := draws.take(at.node)) is not None and at.is_known(target):
            path.append(_Visit(draw.child, at.chance(draw)))
        elif at.p >= 1 or (at.p > 0 and rng.random() <= at.p):
            token = at.choose(target, randomness.noise(len(path) - 1))
            child = children.get((at.node, token))
            if child is None:
                return Acceptance(tuple([visit.node for visit in path[1:]]), token)
            path.append(_Visit(child, 1.0))
        else:
            path.pop()
            if not path[-1].reject():
                path.append(_Visit(at.node, 1.0))  # M = q: only rounding can have rejected the draw


@dataclass(frozen=True, slots=True)
class _Draw:
    """A drawn child, with its distribution q [K] over tokens `ids` [K]."""

    child: int
    token: int
    ids: Int32
    q: Float64


class _Draws:
    """The draws of a tree that were not tried yet."""

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self._below = {node: deque(draws) for node, draws in tree.draws_by_parent().items()}
        self._left: dict[int, Float64] = {}
        """Index of a proposal -> q of its next draw."""

    def take(self, node: int) -> _Draw | None:
        """Return and remove the next draw below a node; None: no more."""
        if not self._below.get(node):
            return None
        index, place = self._below[node].popleft()
        proposal = self._tree.proposals[index]
        child, ids = proposal.children[place], proposal.q_token_ids
        token = int(self._tree.token_ids[child])
        q = self._left.pop(index, None)
        if q is None:
            q = normalised(proposal.q_probabilities.astype(np.float64))
        replaced = proposal.kind is ProposalKind.WITH_REPLACEMENT
        self._left[index] = q if replaced else without(q, ids, token)
        return _Draw(child, token, ids, q)


class _Visit:
    """A node u of the tried path, with its p and M."""

    def __init__(self, node: int, p: float) -> None:
        self.node, self.p = node, p
        self._residual: Float64 | Excerpt | None = None
        """M times `_total`; None: M is not known yet."""
        self._total = 1.0
        self._tried: _Draw | None = None

    def is_known(self, target: Target) -> bool:
        """Return whether M is known; False if a constraint's mask is late.

        Without M no draw below the node is tried. The node is accepted with probability p and ends the verdict.
        """
        if self._residual is None:
            try:
                self._residual = target.probabilities(self.node)
            except LateNodeError:
                return False
        return True

    def chance(self, draw: _Draw) -> float:
        """Return `min(1, p M[c] / q[c])`, the p of the drawn child c."""
        assert self._residual is not None
        self._tried = draw
        q = float(draw.q[draw.ids == draw.token][0])
        return min(1.0, self.p * float(self._residual[draw.token]) / (q * self._total))

    def reject(self) -> bool:
        """Update p, M after rejecting the last draw; False: M is empty."""
        assert self._tried is not None
        assert self._residual is not None
        left = subtract(self._residual, self._total, self._tried.ids, self._tried.q / self.p)
        owed = self.p * left / self._total
        if owed <= 0 and self.p >= 1:
            return False
        self.p = owed / (owed + (1 - self.p))
        self._total = left
        return True

    def choose(self, target: Target, noise: Noise) -> int:
        return target.choose(self.node, noise) if self._residual is None else noise.choose(self._residual)
