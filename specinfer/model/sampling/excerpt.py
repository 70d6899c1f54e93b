"""A distribution in which only some tokens are distinguished.

    whole row          P(cat) P(dog) | P(sat) P(ran) P(the) ...     q of the draws: cat, dog
    kept of it         P(cat) P(dog) | their sum, and the first of them to arrive: (ran, P(ran))

Acceptance decides by it as by the whole row, as long as it reads and changes only the distinguished tokens:
what wins by noise is the first to arrive among them and the winner of all others
(`specinfer.model.sampling.noise`).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]


class Excerpt:
    """P of some tokens, and a summary of all others; unnormalised after changes."""

    def __init__(self, token_ids: Int32, p: Float64, rest: float, winner: tuple[int, float]) -> None:
        """Make the excerpt; `token_ids` ascend.

        `rest` is the sum of P over the others, `winner` the one of them that noise chooses, and its P, which
        is 0 if they have none.
        """
        self._ids, self._p, self._rest, self._winner = token_ids, p, rest, winner

    def __getitem__(self, token_ids: Any) -> Any:
        return self._p[np.searchsorted(self._ids, token_ids)]

    def __setitem__(self, token_ids: Any, p: Any) -> None:
        self._p[np.searchsorted(self._ids, token_ids)] = p

    def sum(self) -> float:
        """Sum of P over all tokens."""
        return self._rest + float(self._p.sum())

    def candidates(self) -> tuple[Int32, Float64]:
        """Return the tokens among which noise chooses, and their P."""
        return np.append(self._ids, np.int32(self._winner[0])), np.append(self._p, self._winner[1])
