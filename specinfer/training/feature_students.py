"""Trainable modules that read hidden states: common parts and heads."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import nn

from specinfer.drafters.heads_layers import (
    MARKOV_IN,
    MARKOV_OUT,
    BlockwiseSource,
    Heads,
    HeadsSource,
    output_head,
)
from specinfer.model.torch.parts import Parts
from specinfer.model.weights.config import ModelConfig
from specinfer.training.student import parameter_key, tensor_name


@dataclass(frozen=True, slots=True)
class UnrolledRows:
    """Labels of training step k: row j predicts token j + 2 + k."""

    rows: torch.Tensor
    label_ids: torch.Tensor
    """[R, K] indices into the draft vocabulary."""
    label_probabilities: torch.Tensor
    next_tokens: torch.Tensor
    """[R] next tokens of the target."""

    def to(self, device: torch.device) -> "UnrolledRows":
        return UnrolledRows(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class UnrolledBatch:
    """Padded continuations with the target's hidden states."""

    token_ids: torch.Tensor
    """[B, T] the token one ahead of each hidden state."""
    states: torch.Tensor
    """[B, T, layers, hidden] bfloat16."""
    steps: tuple[UnrolledRows, ...]

    def to(self, device: torch.device) -> "UnrolledBatch":
        steps = tuple(step.to(device) for step in self.steps)
        return UnrolledBatch(self.token_ids.to(device), self.states.to(device), steps)

    @property
    def next_tokens(self) -> torch.Tensor:
        """[R] next tokens of the first step."""
        return self.steps[0].next_tokens


class FeatureStudent(nn.Module):
    """A student whose parameters are the tensors of its checkpoint.

    A call with a batch returns the logits [R, draft vocabulary] of each step's rows.
    """

    def __init__(self, trained: Mapping[str, torch.Tensor], frozen: Mapping[str, torch.Tensor]) -> None:
        """Register tensors; `frozen` tensors are neither trained nor saved."""
        super().__init__()
        for name, tensor in trained.items():
            self.register_parameter(parameter_key(name), nn.Parameter(tensor.float().clone()))
        for name, tensor in frozen.items():
            self.register_buffer(parameter_key(name), tensor.float(), persistent=False)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tensors(self) -> dict[str, torch.Tensor]:
        return {tensor_name(key): value.detach() for key, value in self.named_parameters()}

    def all_tensors(self) -> dict[str, torch.Tensor]:
        """Return trained and frozen tensors by name, for a differentiable pass."""
        return {tensor_name(key): tensor for key, tensor in (*self.named_parameters(), *self.named_buffers())}


class HeadsStudent(FeatureStudent):
    """Student with heads, which map last hidden states to logits."""

    def __init__(
        self,
        config: ModelConfig,
        kind: type[HeadsSource],
        count: int,
        trained: Mapping[str, torch.Tensor],
        frozen: Mapping[str, torch.Tensor],
    ) -> None:
        """Create heads for the target `config`; `frozen` are its `tensors_of_target`."""
        super().__init__(trained, frozen)
        self._config, self._kind, self._count = config, kind, count
        self._markov = f"{MARKOV_OUT}.weight" in trained

    def forward(self, batch: UnrolledBatch) -> list[torch.Tensor]:
        parts = Parts(self._config, self.all_tensors(), torch.float32, str(self.device))
        heads = Heads(self._kind, self._count, self._config, parts, self._markov)
        outs = heads.outs(batch.states[:, :, -1].flatten(0, 1).float())
        logits = heads.logits([outs[targets.rows, head] for head, targets in enumerate(batch.steps)])
        if heads.markov is None:
            return logits
        before = [
            torch.roll(batch.token_ids, -step, 1).flatten()[targets.rows]
            for step, targets in enumerate(batch.steps)
        ]
        return [rows + heads.markov(tokens) for rows, tokens in zip(logits, before, strict=True)]


def starting_heads(
    kind: type[HeadsSource],
    count: int,
    config: ModelConfig,
    target: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    seed: int,
    rank: int = 0,
) -> dict[str, torch.Tensor]:
    """Return initial heads, which predict the target's next token.

    `rank` is the rank of the Markov head; 0: no Markov head.
    """
    hidden, generator = config.hidden_size, torch.Generator().manual_seed(seed)
    tensors = {}
    if rank:
        tensors[f"{MARKOV_IN}.weight"] = torch.randn(rank, hidden, generator=generator) * hidden**-0.5
        tensors[f"{MARKOV_OUT}.weight"] = torch.zeros(len(token_ids), rank)
    if issubclass(kind, BlockwiseSource):
        return tensors | {
            "in_proj.weight": torch.randn(count * hidden, hidden, generator=generator) * hidden**-0.5,
            "in_proj.bias": torch.zeros(count * hidden),
            "out_proj.weight": torch.zeros(count * hidden, count * hidden),
            "out_proj.bias": torch.zeros(count * hidden),
        }
    for i in range(count):
        tensors[f"{i}.0.linear.weight"] = torch.zeros(hidden, hidden)
        tensors[f"{i}.0.linear.bias"] = torch.zeros(hidden)
        tensors[f"{i}.1.weight"] = output_head(config, target, token_ids)
    return tensors
