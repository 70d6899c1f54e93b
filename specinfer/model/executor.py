"""Defines the interface of executors, which run passes."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specinfer.model.batch import Batch
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import Slots
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.interfaces import Blocks

Logits: TypeAlias = "torch.Tensor | NDArray[np.float32]"
"""Rows of logits, float32: in numpy if the executor does not use torch."""


class Executor(Protocol):
    """Runs passes with a model's weights and its KV cache."""

    name: str
    """Value of `--executor`."""

    def run(self, batch: Batch) -> Logits:
        """Run a pass; return the float32 logits [R, V] of `batch.logit_rows`.

        It writes keys and values to `batch.write_slots`, and hidden states to `batch.features`.
        """

    def move(self, source: Slots, target: Slots) -> None:
        """Copy keys and values between slots."""

    def rotate(self, slots: Slots, delta: int) -> None:
        """Rotate the keys of slots by `delta` rotary positions."""


@runtime_checkable
class HeadSetter(Protocol):
    """An executor whose output head can be replaced."""

    def set_head(self, blocks: Blocks) -> None:
        """Replace the head by another with the same number of rows."""


@runtime_checkable
class RecurrentExecutor(Protocol):
    """An executor of models that may have recurrent layers."""

    @property
    def recurrent_states(self) -> RecurrentStates[Any] | None:
        """States of recurrent layers; None: the model has no such layers."""
