"""Computes the residual of P after a rejected draw from q."""

import numpy as np

from specinfer.model.sampling.choices import Excerpt
from specinfer.tree.token_tree import Int32
from specinfer.verification.acceptance import Float64

_ROUNDING = 1e-6
"""Residuals below this share of the total are summed again, without cancellation."""


def normalised(q: Float64) -> Float64:
    """Return q [K] with sum 1, or unchanged if it is 0."""
    total = q.sum()
    return np.asarray(q / total) if total > 0 else q


def without(q: Float64, ids: Int32, token: int) -> Float64:
    """Return q [K] without `token`, normalised; `ids` [K] are its tokens."""
    return normalised(np.where(ids == token, 0.0, q))


def subtract(p: Float64 | Excerpt, total: float, ids: Int32, q: Float64) -> float:
    """Set P := max(0, P - q) in place, unnormalised; return the total.

    P is p / total, before and after. The new total is 0 if P = q. The cost is O(len(q)), not O(vocabulary).
    """
    before = p[ids]
    after = np.maximum(before - total * q, 0.0)
    p[ids] = after
    left = total - float((before - after).sum())
    return left if left > _ROUNDING * total else float(p.sum())
