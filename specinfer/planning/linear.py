"""The learned policy's model of one speculator set: accepted tokens, linear in features of a request and in
two functions of the nodes that it gets. Pure.

    accepted(x, n) = x . W . (log2(1 + n), n / (1 + n))

It is refined while serving. The weights are taken for a random walk, of which every row r (all products of a
feature and a function of n) with its y tokens shows a part, so a Kalman filter follows them, with P as the
variance of the weights over that of y:

    w += P R' (R P R' + 1)^-1 clip(y - R w)        P -= P R' (R P R' + 1)^-1 R P
    P += (M / 100 - P) / 2000                      for every step, seen or not

M is the inverse of the mean of r r' over the training rows. So what was not seen for long is believed least,
and what probes find then counts as much as a hundredth of the training; and no step is larger than M / 100
allows, whatever r is.
"""

from dataclasses import dataclass

import numpy as np

from specinfer.planning.features import NAMES, Floats

FUNCTIONS = 2
_TRUST, _LEAST_TRUST = 400.0, 100.0
"""Rows that the weights count for at the start, and after a long time in which nothing was seen."""
_RELAXATION = 2000.0
"""Steps after which 1/e of what was learnt is still trusted."""
_MOST_ERROR = 4.0
"""Tokens that an error counts for at most."""
_RIDGE = 1e-3
"""Added to the diagonal of the mean of r r', so that it can be inverted."""
_FIRST_PACE = 10.0
"""Diagonal of M before anything was trained."""


def functions_of(nodes: Floats) -> Floats:
    """[2, ...] of the nodes that a request gets."""
    return np.stack([np.log2(1 + nodes), nodes / (1 + nodes)])


@dataclass(slots=True)
class LinearModel:
    """Weights, and how they are refined."""

    weights: Floats
    """[features, functions] W."""
    pace: Floats
    """[features * functions, the same] M."""
    variance: Floats
    """[features * functions, the same] P."""

    @classmethod
    def of(cls, weights: Floats, pace: Floats) -> "LinearModel":
        """One that begins to serve."""
        return cls(weights, pace, pace / _TRUST)

    @classmethod
    def usual(cls) -> "LinearModel":
        """What the measured policy says: accepted tokens are `usual` times the doublings."""
        weights = np.zeros((len(NAMES), FUNCTIONS))
        weights[NAMES.index("usual"), 0] = 1.0
        return cls.of(weights, _FIRST_PACE * np.eye(weights.size))

    @classmethod
    def fitted(cls, rows: Floats, accepted: Floats) -> "LinearModel":
        """Least squares over [N, features * functions] rows, drawn a little towards `usual`."""
        mean = rows.T @ rows / len(rows) + _RIDGE * np.eye(rows.shape[1])
        start = cls.usual().weights.reshape(-1)
        weights = start + np.linalg.solve(mean, rows.T @ (accepted - rows @ start) / len(rows))
        return cls.of(weights.reshape(len(NAMES), FUNCTIONS), np.asarray(np.linalg.inv(mean), float))

    def squared_error(self, rows: Floats, accepted: Floats) -> float:
        """The mean over rows."""
        return float(((accepted - self.expected(rows)) ** 2).mean())

    def refine(self, rows: Floats, accepted: Floats, steps: int = 1) -> None:
        """Learns from what came of [N, features * functions] rows, so many steps after it last did."""
        kept = (1 - 1 / _RELAXATION) ** steps
        spread = kept * self.variance + (1 - kept) * self.pace / _LEAST_TRUST
        errors = np.clip(accepted - self.expected(rows), -_MOST_ERROR, _MOST_ERROR)
        across = rows @ spread
        gain = np.linalg.solve(across @ rows.T + np.eye(len(rows)), across).T
        self.weights = self.weights + (gain @ errors).reshape(self.weights.shape)
        spread = spread - gain @ across
        self.variance = (spread + spread.T) / 2

    def expected(self, rows: Floats) -> Floats:
        """[N] tokens."""
        return np.asarray(rows @ self.weights.reshape(-1))


def rows_of(known: Floats, sizes: Floats) -> Floats:
    """[sizes, features * functions] of a request's features, with trees of these sizes."""
    return (known[None, :, None] * functions_of(sizes).T[:, None]).reshape(len(sizes), -1)
