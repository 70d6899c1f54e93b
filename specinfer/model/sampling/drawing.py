"""Draws children of tree nodes from a draft's distribution."""

from __future__ import annotations

import numpy as np

from specinfer.model.arrays import Array
from specinfer.model.sampling.distributions import draw, probabilities
from specinfer.request.sampling import Sampling
from specinfer.tree import Draws, Proposal, ProposalKind
from specinfer.tree.token_tree import Float32, Int32


def draft_distribution(logits: Array, sampling: Sampling, support: int) -> tuple[Int32, Float32]:
    """Return q: the distribution of the `support` most probable draft tokens.

    q is restricted *before* any draw, so the verifier gets the distribution that was sampled.
    """
    p = probabilities(logits, sampling)
    ids = np.argpartition(-p, min(support, len(p)) - 1)[:support]
    ids = ids[np.lexsort((ids, -p[ids]))]
    ids = ids[p[ids] > 0]
    return ids.astype(np.int32), (p[ids] / p[ids].sum()).astype(np.float32)


class Drawing:
    """Draws one node's children one after another."""

    def __init__(
        self,
        index: int,
        node: int,
        q: tuple[Int32, Float32],
        kind: ProposalKind,
        rng: np.random.Generator,
    ) -> None:
        """Prepare draws below `node`.

        Args:
            index: number of this object in its tree.
            q: token ids, and their probabilities.
        """
        self.index, self.node, self.q, self.kind, self._rng = index, node, q, kind, rng
        self._left = q[1].astype(np.float64)
        self._draws = Draws(q[1].tolist(), kind)
        self.children: list[int] = []
        """Nodes of the drawn children, in order; the caller of `draw` appends."""

    @property
    def chance(self) -> float:
        """Estimated probability that the next draw is accepted if its parent is."""
        return self._draws.chance

    def draw(self) -> int:
        """Draw the next child; return its token."""
        index = draw(self._left, self._rng)
        self._draws.take(float(self.q[1][index]))
        if self.kind is ProposalKind.WITHOUT_REPLACEMENT:
            self._left[index] = 0.0
        return int(self.q[0][index])

    def proposal(self) -> Proposal:
        return Proposal(self.node, 0, self.kind, tuple(self.children), *self.q)
