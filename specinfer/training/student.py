"""SSM as a trainable module: decoder layers, frozen embeddings, a small head.

Layers start as copies of target layers, and the head as the target's head rows of the draft vocabulary; or both start
as an earlier SSM, possibly with inserted layers. The module has the target's architecture and uses the decoder that
later runs the checkpoint (`specinfer.model`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from specinfer.drafters.heads_layers import output_head
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.torch.layer import LAYER_MODULES, OUTPUTS, Attend
from specinfer.model.torch.transformer import Transformer
from specinfer.model.weights.config import ModelConfig, shape_fields
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import (
    OF_TRAINED_SSMS,
    DraftModel,
    fingerprint_in,
    frozen_names,
    load_ssm,
)
from specinfer.model.weights.families import open_weights
from specinfer.model.weights.interfaces import Weights
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.training.run import layer_numbers


def causal_attention(batch: int, length: int) -> Attend:
    """Return causal attention over `batch` consecutive sequences of `length` tokens.

    Padding is on the right, so no token attends to it.
    """

    def attend(_: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        heads = (t.to(value.dtype).view(batch, length, *t.shape[1:]) for t in (query, key, value))
        q, k, v = (t.transpose(1, 2) for t in heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).flatten(0, 1)

    return attend


class LayerStart(NamedTuple):
    weights: Weights
    layer: int
    silent: bool = False
    """True if the layer's outputs start at zero and change nothing."""


class Student(nn.Module):
    """Maps token ids [B, T] to logits over the draft vocabulary."""

    def __init__(
        self, config: ModelConfig, weights: Weights, layers: Sequence[LayerStart], head: torch.Tensor
    ) -> None:
        """Copy the initial weights; `head` is [draft vocabulary, hidden]."""
        super().__init__()
        self.config = replace(config, layers=len(layers), vocab_size=len(head), tied_embeddings=False)
        for name in frozen_names(config):
            self.register_buffer(parameter_key(name), weights[name].float(), persistent=False)
        for place, start in enumerate(layers):
            self._add_layer(place, start)
        for name in ("model.norm.weight", "model.norm.bias"):
            if name in weights:
                self._add(name, weights[name])
        self._add("lm_head.weight", head)

    @classmethod
    def from_target(
        cls, config: ModelConfig, target: Weights, layers: Sequence[int], vocabulary: torch.Tensor
    ) -> "Student":
        """Start from target layers, and the target head's rows of `vocabulary`."""
        config.like_llama(OF_TRAINED_SSMS)
        head = output_head(config, target, vocabulary)
        return cls(config, target, [LayerStart(target, layer) for layer in layers], head)

    @classmethod
    def from_draft(
        cls, draft: DraftModel, target: Weights | None = None, inserted: Sequence[int] = ()
    ) -> "Student":
        """Start from an SSM, with silent target layers inserted before the last."""
        starts = [LayerStart(draft.weights, layer) for layer in range(draft.config.layers)]
        if target is not None:
            starts[-1:-1] = [LayerStart(target, layer, silent=True) for layer in inserted]
        return cls(draft.config, draft.weights, starts, draft.weights["lm_head.weight"])

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def layers(self) -> int:
        return self.config.layers

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the trained tensors by checkpoint name."""
        return {tensor_name(key): parameter.detach() for key, parameter in self.named_parameters()}

    def forward(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return logits [R, draft vocabulary] at flat `rows` of ids [B, T]."""
        batch, length = token_ids.shape
        # the decoder reads fused matrices; concatenating them here keeps gradients
        tensors = {
            tensor_name(key): tensor for key, tensor in (*self.named_parameters(), *self.named_buffers())
        }
        config = replace(self.config, max_positions=length)
        model = Transformer(config, tensors, torch.float32, str(token_ids.device))
        positions = torch.arange(length, device=token_ids.device).repeat(batch)
        return model.logits(
            model.forward(token_ids.flatten(), positions, causal_attention(batch, length))[rows]
        )

    def _add_layer(self, place: int, start: LayerStart) -> None:
        for module in LAYER_MODULES:
            for kind in ("weight", "bias"):
                source = f"model.layers.{start.layer}.{module}.{kind}"
                if source in start.weights:
                    zero = start.silent and module in OUTPUTS
                    tensor = start.weights[source]
                    self._add(f"model.layers.{place}.{module}.{kind}", tensor * 0 if zero else tensor)

    def _add(self, name: str, value: torch.Tensor) -> None:
        self.register_parameter(parameter_key(name), nn.Parameter(value.float().clone()))


def parameter_key(name: str) -> str:
    """Return a tensor's name without dots, which torch's parameter names forbid."""
    return name.replace(".", "/")


def tensor_name(key: str) -> str:
    return key.replace("/", ".")


class Start(NamedTuple):
    """Initial weights: an SSM with layers to insert, or a model's layers."""

    target: Path
    ssm: DraftModel | None
    model: Path
    """The target, or a smaller model with the target's embeddings."""
    layers: Sequence[int]
    """Layers of `model`, or of the target to insert into an SSM."""

    @classmethod
    def read(cls, target: Path, start: Path | None, layers: str, insert: str) -> "Start":
        """Parse `layers` and `insert`: comma-separated numbers, or empty."""
        if start is not None and is_draft_checkpoint(start):
            ssm = load_ssm(start, target)
            return cls(target, ssm, target, _inserted(insert, ssm.config, load_config(target)))
        if insert:
            raise SettingError("insert", insert, "needs an SSM as --start, into which layers are inserted")
        if start is not None and fingerprint_in(start) != fingerprint_in(target):
            raise IncompatibleError(f"start = {start}: must have the embeddings of the target {target}")
        config = load_config(start or target)
        usual = range(config.layers) if start else (0, config.layers - 1)
        return cls(target, None, start or target, _numbers("layers", layers, config) or usual)

    def student(self, token_ids: torch.Tensor) -> Student:
        """Return the student; if made from layers, `token_ids` are its draft vocabulary."""
        config = load_config(self.model)
        weights = open_weights(self.model, config)
        if self.ssm is not None:
            return Student.from_draft(self.ssm, weights, self.layers)
        return Student.from_target(config, weights, self.layers, token_ids)


def _numbers(name: str, text: str, config: ModelConfig) -> list[int]:
    """Parse and check comma-separated layer numbers of a model."""
    numbers = layer_numbers(name, text)
    if not all(0 <= number < config.layers for number in numbers):
        raise SettingError(name, text, f"must be layers of the model, 0 to {config.layers - 1}")
    return numbers


def _inserted(insert: str, ssm: ModelConfig, target: ModelConfig) -> list[int]:
    """Return the target layers to insert into an SSM."""
    numbers = _numbers("insert", insert, target)
    if numbers and shape_fields(ssm, target).keys() - {"num_hidden_layers"}:
        raise SettingError("insert", insert, "layers of the target must have the shape of those of --start")
    return numbers
