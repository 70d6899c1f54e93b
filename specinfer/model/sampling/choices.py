"""Interface for the target's choices where the logits lie, so that logits need not travel to the host.

Acceptance needs of a row of logits [V] the token that the target chooses there (the most probable, or
the one that wins with the request's noise) and, below a node with draws, P at the tokens of their q. The rest
of the row matters to it only as a sum and by the token that wins among them: rejections change P at tokens
of q alone (`Excerpt`). A `Chooser` finds these numbers for all rows of a pass at once
(`specinfer.model.gpu.choice`). Rules decide on the host by them, as they decide by whole rows
(`specinfer.verification.acceptance`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from specinfer.model.sampling.excerpt import Excerpt
from specinfer.sampling import Sampling
from specinfer.tree.token_tree import Int32


@dataclass(frozen=True, slots=True)
class ChoiceTask:
    """Rows of logits of one request, and the wanted results."""

    logits: torch.Tensor
    """Logits [N, V] float32."""
    sampling: Sampling
    positions: Int32
    """[N] absolute position of the token that each row predicts: keys the noise."""
    excerpts: Mapping[int, Int32] = field(default_factory=dict)
    """Ascending tokens of each row whose P is wanted."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Results in the rows of a task."""

    tokens: list[int]
    """[N] chosen tokens; where an excerpt was wanted, among the others. -1: the logits are not finite."""
    excerpts: Mapping[int, Excerpt]


@runtime_checkable
class Chooser(Protocol):
    """An executor that chooses where its logits are."""

    def choose(self, tasks: Sequence[ChoiceTask]) -> list[Choices]:
        """Choose tokens, one result per task, in order. Waits for the pass of the logits."""
