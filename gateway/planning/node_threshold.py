"""The node threshold: which tree nodes are verified in a step, by what they add to the target's pass. Pure.

A node is kept if it brings tokens at least as fast as the step does without it:

    path probability  >=  tokens per second of the step  *  seconds it adds to the pass
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_DECAY = 0.85
"""Of one request's candidates by path probability: the next one's over that of the one before."""
_POINTS = 64
"""Node counts at which thresholds of larger steps are computed; those between take the next lower one's."""


@dataclass(frozen=True, slots=True)
class NodeThreshold:
    """Which nodes pay in one step, over the whole batch."""

    least: Sequence[float]
    """Least path probability that pays, by how many nodes are kept already; as many are kept at most."""
    least_reach: float = 0.0
    """Path probability below which speculators need not go on: what a node costs on average. They go by
    their own scores, which are not calibrated yet."""

    def __call__(self, kept: int, path_probability: float) -> bool:
        """Whether one more node pays, given those kept and its path probability."""
        return kept < len(self.least) and path_probability >= self.least[kept]


NO_NODES = NodeThreshold(())
"""For steps without trees."""


def node_threshold(seconds: Sequence[float] | NDArray[np.float64], speed: float, batch: int) -> NodeThreshold:
    """The threshold of a step.

    Kernels take several tokens at a time, so a pass grows in stairs, and the node that begins a stair pays if
    it does together with those behind it. Those cannot be looked at, since a draw must be kept or not before
    its token, and so what lies below it, is known; but path probabilities fall steadily.

    Args:
        seconds: of passes with 0, 1, ... nodes, up to the most that there may be.
        speed: tokens per second.
        batch: requests, whose candidates are ranked together.
    """
    most, pass_s = len(seconds) - 1, np.asarray(seconds)
    counts = np.unique(np.linspace(0, most, min(most, _POINTS) + 1).round().astype(int))
    added = (pass_s[counts] - pass_s[counts, None])[:-1]
    ahead = counts > counts[:-1, None]
    least = speed * (added / _sums(tuple(counts.tolist()), batch)).min(axis=1, where=ahead, initial=np.inf)
    # not from the first node, which also bears what a pass with trees takes longer than one without
    mean = speed * (pass_s[most] - pass_s[1]) / (most - 1) if most > 1 else 0.0
    by_kept = np.repeat(least, np.diff(counts))
    return NodeThreshold(by_kept.tolist(), min(max(float(mean), 0.0), 1.0))


@lru_cache(maxsize=256)
def _sums(counts: tuple[int, ...], batch: int) -> NDArray[np.float64]:
    """[points - 1, points]: path probabilities from one count to another, over that of the first node."""
    decay = _DECAY ** (1 / batch)
    nodes = np.array(counts) - np.array(counts[:-1])[:, None]
    return np.where(nodes > 0, (1 - decay**nodes) / (1 - decay), 1.0)
