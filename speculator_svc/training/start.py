"""What the training of an SSM starts from: layers of the target, a pruned model, or another SSM."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.weights.config import ModelConfig, load_config, shape_fields
from specinfer.model.weights.draft_checkpoint import (
    DraftModel,
    fingerprint_in,
    is_draft_checkpoint,
    load_ssm,
)
from specinfer.model.weights.families import open_weights
from speculator_svc.training.options import layer_numbers
from speculator_svc.training.student import Student


class Start(NamedTuple):
    """An SSM, with layers of the target to put in; or layers of a model."""

    target: Path
    ssm: DraftModel | None
    model: Path
    """The target or a pruned model of it."""
    layers: Sequence[int]
    """Of `model`, or of the target if they go into an SSM."""

    @classmethod
    def read(cls, target: Path, start: Path | None, layers: str, insert: str) -> "Start":
        """From options: `layers` and `insert` are numbers with commas between them, or nothing.

        Raises:
            SettingError: if a layer is not there, or if there is no SSM to put some into.
            IncompatibleError: if what is started from is of another target.
        """
        if start is not None and is_draft_checkpoint(start):
            ssm = load_ssm(start, target)
            return cls(target, ssm, target, _inserted(insert, ssm.config, load_config(target)))
        if insert:
            raise SettingError("insert", insert, "there is no SSM in --start to put layers into")
        if start is not None and fingerprint_in(start) != fingerprint_in(target):
            raise IncompatibleError(f"{start} is no model pruned from {target}: it has other embeddings")
        config = load_config(start or target)
        usual = range(config.layers) if start else (0, config.layers - 1)
        return cls(target, None, start or target, _numbers("layers", layers, config) or usual)

    def student(self, token_ids: torch.Tensor) -> Student:
        """The SSM to train; one that starts from layers has these tokens as its draft vocabulary."""
        config = load_config(self.model)
        weights = open_weights(self.model, config)
        if self.ssm is not None:
            return Student.from_draft(self.ssm, weights, self.layers)
        return Student.from_target(config, weights, self.layers, token_ids)


def _numbers(name: str, text: str, config: ModelConfig) -> list[int]:
    """Numbers of layers of a model."""
    numbers = layer_numbers(name, text)
    if not all(0 <= number < config.layers for number in numbers):
        raise SettingError(name, text, f"the model has layers 0 to {config.layers - 1}")
    return numbers


def _inserted(insert: str, ssm: ModelConfig, target: ModelConfig) -> list[int]:
    """The target layers to put into an SSM."""
    numbers = _numbers("insert", insert, target)
    if numbers and shape_fields(ssm, target).keys() - {"num_hidden_layers"}:
        raise SettingError("insert", insert, "the target's layers have another shape than those of --start")
    return numbers
