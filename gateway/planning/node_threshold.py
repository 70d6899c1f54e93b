"""Which tree nodes are worth verifying, by what they add to the target's pass. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_DECAY = 0.85
"""Of one request's candidates by their chance: the next one's over that of the one before."""


@dataclass(frozen=True, slots=True)
class NodeWorth:
    """Which nodes pay in one step, over the whole batch."""

    least: Sequence[float]
    """Least chance of acceptance that pays, by how many nodes are kept already; as many are kept at most."""
    least_reach: float = 0.0
    """Chance below which drafters need not follow a path: what a node costs on average. They go by their own
    idea of a chance, which is not calibrated yet."""

    def __call__(self, kept: int, chance: float) -> bool:
        """Whether one more node pays, given those kept and its chance of acceptance."""
        return kept < len(self.least) and chance >= self.least[kept]


NOTHING = NodeWorth(())
"""For steps without trees."""


def judge_nodes(seconds: Sequence[float], speed: float, batch: int) -> NodeWorth:
    """Judges nodes by the tokens that their time would bring otherwise.

    Kernels take several tokens at a time, so a pass grows in stairs, and the node that begins a stair pays if
    it does together with those behind it. Theirs cannot be looked at, since a draw must stay or go before
    its token, and so what grows below it, is known; but chances fall steadily.

    Args:
        seconds: of passes with 0, 1, ... nodes, up to the most that there may be.
        speed: tokens per second.
        batch: requests, whose candidates are ranked together.
    """
    most, pass_s = len(seconds) - 1, np.array(seconds)
    added = (pass_s - pass_s[:, None])[:-1]
    least = speed * (added / _hopes(most, batch)).min(axis=1, where=_ahead(most), initial=np.inf)
    # not from the first node, which also bears what a pass with trees takes longer than one without
    reach = speed * (seconds[most] - seconds[1]) / (most - 1) if most > 1 else 0.0
    return NodeWorth(least.tolist(), min(max(reach, 0.0), 1.0))


@lru_cache
def _ahead(most: int) -> NDArray[np.bool_]:
    """[most, 1 + most]: whether a number of nodes is more than those kept."""
    return np.arange(most + 1) > np.arange(most)[:, None]


@lru_cache
def _hopes(most: int, batch: int) -> NDArray[np.float64]:
    """[most, 1 + most]: chances of all nodes from the next one to the last, over that of the next one."""
    decay = _DECAY ** (1 / batch)
    nodes = np.arange(most + 1) - np.arange(most)[:, None]
    return np.where(nodes > 0, (1 - decay**nodes) / (1 - decay), 1.0)
