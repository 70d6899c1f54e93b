"""Runs EAGLE's layer and tree growth in the compiled kernels.

The reference is `specinfer.model.drafting.stack.DraftStack`, with the growth of `expansion.py`.
"""

from collections.abc import Sequence

import torch

from specinfer.model.drafting.stack import DraftWeights, DroppedRows, RowsTask
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.formats.weights_in_format import WeightsInFormat, name_of
from specinfer.model.native.model import NativeModel
from specinfer.tree import TokenTree


class NativeEagle(DroppedRows):
    """EAGLE's layer in the kernels, with its own KV cache."""

    def __init__(
        self,
        weights: DraftWeights,
        in_format: WeightsInFormat,
        dtype: torch.dtype | str,
        num_blocks: int,
        kv_type: str,
    ) -> None:
        """Pack the layer; `in_format` returns its matrices and the target's embeddings."""
        tensors = weights.tensors
        self.config = weights.config
        self.states = tensors["fc.weight"].shape[1] // self.config.hidden_size
        self.model = NativeModel(
            self.config, name_of(dtype), kv_type, self.states, weights.norm_before_residual
        )
        # hidden states have a few very large numbers: with bytes, all others would be rounded to 0
        self.model.packer(tensors).pack_states()
        packer = self.model.packer(in_format)
        packer.pack_layer(0)
        self._embedding = packer.pack_ends()
        self.memory = self.model.memory(num_blocks)
        self._growth = self.model.growth(self.memory)

    def grow(self, tasks: Sequence[RowsTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        """Grow one tree per task; write its nodes' keys and values.

        Each sequence must have space for its delta and nodes.
        """
        states = torch.cat([item.states for item in tasks]).to(torch.bfloat16).contiguous()
        return self._growth.grow([item.task for item in tasks], shape, token_ids, states)
