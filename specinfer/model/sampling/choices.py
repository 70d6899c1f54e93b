"""Interface for the target's choices on the logits' device.

So logits are not copied to the host. Acceptance needs of a row of logits [V] the target's choice (the most
probable token, or the winner with the request's noise) and, below a node with draws, P at the tokens of their
q. The rest of the row matters to it only as a sum and by the token that wins among them: rejections change P
at tokens of q alone. An `Excerpt` keeps that much:

    whole row          P(cat) P(dog) | P(sat) P(ran) P(the) ...     q of the draws: cat, dog
    kept of it         P(cat) P(dog) | their sum, and the first of them to arrive: (ran, P(ran))

A `Chooser` finds these numbers for all rows of a pass at once (`specinfer.model.gpu.choice`). Rules decide on
the host by them, as they decide by whole rows (`specinfer.verification.acceptance`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.sampling import Sampling

Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]


class Excerpt:
    """P of some tokens, and a summary of all others."""

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


@dataclass(frozen=True, slots=True)
class ChoiceTask:
    """Rows of logits of one request, and the wanted results."""

    logits: torch.Tensor
    """Logits [N, V] float32."""
    sampling: Sampling
    positions: Int32
    """[N] absolute position of each row's prediction: keys the noise."""
    excerpts: Mapping[int, Int32] = field(default_factory=dict)
    """Ascending tokens of each row whose P is wanted."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Results in the rows of a task."""

    tokens: list[int]
    """[N] chosen tokens, outside the excerpts. -1: non-finite logits."""
    excerpts: Mapping[int, Excerpt]


@runtime_checkable
class Chooser(Protocol):
    """An executor that chooses on its logits' device."""

    def choose(self, tasks: Sequence[ChoiceTask]) -> list[Choices]:
        """Choose tokens, one result per task. Waits for the pass."""
