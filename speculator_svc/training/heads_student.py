"""Heads as a trainable module (Medusa, blockwise parallel decoding): step i of the unrolling is head i + 1.

Heads read hidden states only, so nothing is unrolled: all steps read the same row. They run in the code that
runs the checkpoint (`specinfer.model.heads`).
"""

from collections.abc import Mapping

import torch

from specinfer.model.heads import Heads, output_head
from specinfer.model.layers.parts import Parts
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.heads_checkpoint import BlockwiseSource, HeadsSource
from speculator_svc.training.feature_student import FeatureStudent, UnrolledBatch


class HeadsStudent(FeatureStudent):
    """Maps hidden states behind the last layer to logits over the draft vocabulary, head after head."""

    def __init__(
        self,
        config: ModelConfig,
        kind: type[HeadsSource],
        count: int,
        trained: Mapping[str, torch.Tensor],
        frozen: Mapping[str, torch.Tensor],
    ) -> None:
        """`config` is the target's; `frozen` are its `tensors_of_target`."""
        super().__init__(trained, frozen)
        self._config, self._kind, self._count = config, kind, count

    def forward(self, batch: UnrolledBatch) -> list[torch.Tensor]:
        """See `FeatureStudent`."""
        parts = Parts(self._config, self.all_tensors(), torch.float32, str(self.device))
        heads = Heads(self._kind, self._count, self._config, parts)
        outs = heads.outs(batch.states[:, :, -1].flatten(0, 1).float())
        return heads.logits([outs[told.rows, head] for head, told in enumerate(batch.steps)])


def starting_heads(
    kind: type[HeadsSource],
    count: int,
    config: ModelConfig,
    target: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    seed: int,
) -> dict[str, torch.Tensor]:
    """All say what the target says of the next token: what heads add to its state starts at zero."""
    hidden = config.hidden_size
    if issubclass(kind, BlockwiseSource):
        generator = torch.Generator().manual_seed(seed)
        return {
            "in_proj.weight": torch.randn(count * hidden, hidden, generator=generator) * hidden**-0.5,
            "in_proj.bias": torch.zeros(count * hidden),
            "out_proj.weight": torch.zeros(count * hidden, count * hidden),
            "out_proj.bias": torch.zeros(count * hidden),
        }
    tensors = {}
    for i in range(count):
        tensors[f"{i}.0.linear.weight"] = torch.zeros(hidden, hidden)
        tensors[f"{i}.0.linear.bias"] = torch.zeros(hidden)
        tensors[f"{i}.1.weight"] = output_head(config, target)[token_ids]
    return tensors
