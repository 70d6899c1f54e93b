"""Interpolate measured seconds of target passes; derive the node budget. Pure."""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from specinfer.scheduling.limits import NodeBudget

_MIN_S = 1e-6
"""Minimum seconds of a measured pass."""
_ROW = 1e-4
"""Minimum seconds of each further token, relative to a one-token pass."""


class PassCurve:
    """Seconds of a pass by its tokens, interpolated and always rising."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """Build the curve from measured (tokens, seconds) points.

        Each point is lowered to the minimum of all points with more tokens: disturbances only prolong passes.
        """
        ordered = sorted(points)
        if not ordered:
            raise ValueError("points: at least one measured (tokens, seconds) is needed, got none")
        self._sizes, measured = np.array(ordered, float).T
        level = np.minimum.accumulate(np.maximum(measured, _MIN_S)[::-1])[::-1]
        self._seconds = level + _ROW * level[0] * (self._sizes - self._sizes[0])
        self.between = lru_cache(maxsize=256)(self._between)
        """Function from (first, last) to the seconds of each pass.

        The passes have first, first + 1, ..., last tokens.

        Beyond the largest measurement, seconds are proportional to tokens. Cached, as batch sizes repeat.
        """

    def _between(self, first: int, last: int) -> NDArray[np.float64]:
        tokens = np.arange(first, last + 1)
        beyond = np.maximum(tokens / self._sizes[-1], 1.0)
        return np.asarray(np.interp(tokens, self._sizes, self._seconds) * beyond)

    def at(self, tokens: float) -> float:
        """Return the seconds of one pass, interpolated between whole numbers of tokens."""
        whole = int(tokens)
        first, second = self.between(whole, whole + 1).tolist()
        return float(first + (tokens - whole) * (second - first))

    @property
    def token_seconds(self) -> float:
        """Seconds per token of the largest measured pass."""
        return float(self._seconds[-1] / self._sizes[-1])


def derive_budget(
    curve: PassCurve,
    max_batch: int,
    max_tree_nodes: int,
    max_step_tokens: int,
    per_request: int = 0,
    per_step: int = 0,
    context_s: float = 0.0,
) -> NodeBudget:
    """Return the node budget that is fastest for very predictable text.

    In such text, each doubling of a tree is assumed to add one accepted token, twice the usual number. Work
    outside the pass is assumed to take as long as a pass without trees.

    Args:
        curve: seconds of passes by their tokens.
        max_batch: maximum requests of a step.
        max_tree_nodes: maximum nodes of a tree for the verifier.
        max_step_tokens: maximum tokens of a step for the verifier.
        per_request: nodes per request, as set by the operator; 0 derives them.
        per_step: nodes per step, as set by the operator; 0 derives them.
        context_s: seconds that a token of context adds to each row of a pass.
    """
    if not per_request:
        per_request = _best(curve, 1, min(max_tree_nodes, max_step_tokens - 1))
    per_request = min(per_request, max_tree_nodes)
    if not per_step:
        batches = [1 << i for i in range(max_batch.bit_length())] + [max_batch]
        max_nodes = [(b, min(b * per_request, max_step_tokens - b)) for b in batches if b <= max_batch]
        per_step = max([per_request, *(_best(curve, b, nodes) for b, nodes in max_nodes if nodes > 0)])
    seconds = tuple(curve.between(1, max_step_tokens).tolist())
    return NodeBudget(per_request, per_step, max_step_tokens, seconds, context_s)


def _best(curve: PassCurve, batch: int, max_nodes: int) -> int:
    tokens = batch * (1 + np.log2(1 + np.arange(max_nodes + 1) / batch))
    seconds = curve.at(batch) + curve.between(batch, batch + max_nodes)
    return int(np.argmax(tokens / seconds))
