"""Interface of executors that choose the target's tokens on the logits' device.

It avoids copies of logits to the host. An acceptance rule reads two things of a row of logits [V]: the target's choice
(the most probable token, or the winner with the request's noise) and, at a node with draws below, P at the tokens of
the draws' q. Rejections change P only at these tokens, so of all other tokens the rule needs only the sum of P, and
the token that noise chooses among them. An `Excerpt` has these numbers:

    whole row     P(cat) P(dog) | P(sat) P(ran) P(the) ...           q of the draws: cat, dog
    excerpt       P(cat) P(dog) | sum of the rest, and its winner: (ran, P(ran))

A `Chooser` computes them for all rows of a pass at once (`specinfer.model.gpu.choice`). Rules read excerpts as they
read whole rows (`specinfer.verification.acceptance`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specinfer.model.lazy_torch import torch
from specinfer.request.sampling import Sampling

Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]


class Excerpt:
    """P at some tokens; its sum and the winner among all others."""

    def __init__(self, token_ids: Int32, p: Float64, rest: float, winner: tuple[int, float]) -> None:
        """Create the excerpt.

        Args:
            token_ids: tokens with known P, ascending.
            p: P at these tokens.
            rest: sum of P over all other tokens.
            winner: the token that noise chooses among the others, and its P; 0 if all of them have P = 0.
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
        """Return the tokens that noise may choose, and their P."""
        return np.append(self._ids, np.int32(self._winner[0])), np.append(self._p, self._winner[1])


@dataclass(frozen=True, slots=True)
class ChoiceTask:
    """A request's rows of logits, for which to choose tokens."""

    logits: torch.Tensor
    """[N, V] float32."""
    sampling: Sampling
    positions: Int32
    """[N] context position of each row's next token, which selects the noise."""
    excerpts: Mapping[int, Int32] = field(default_factory=dict)
    """Row -> ascending tokens whose P is needed."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Results for the rows of a task."""

    tokens: list[int]
    """[N] chosen tokens, among all tokens without P; -1: non-finite logits."""
    excerpts: Mapping[int, Excerpt]


@runtime_checkable
class Chooser(Protocol):
    """An executor that chooses tokens on its logits' device."""

    def choose(self, tasks: Sequence[ChoiceTask]) -> list[Choices]:
        """Choose tokens for all rows; return one result per task.

        Waits for the pass.
        """
