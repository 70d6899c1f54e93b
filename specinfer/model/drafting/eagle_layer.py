"""Runs EAGLE-3's decoder layer on pairs of hidden state and next token.

    context   t_0 t_1 t_2 ... t_n      rows   (f_0, t_1) (f_1, t_2) ... (f_{n-1}, t_n)
    row j     hidden = fc f_j          out = layer([norm(embedding(t_{j+1})), norm(hidden)]) + residual
              position j               logits = head(norm(out)), of the token after t_{j+1}
    node      hidden = out of the row of its parent

The last context token, the tree's root, is the token of the last row. The target has not computed the root's
hidden state yet, and the layer does not need it. This file has the layer in torch operations, for any device; it is
the reference of the compiled layer (`specinfer.model.native.eagle_layer`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.drafting.task import GrowthTask
from specinfer.model.torch.attention import ReferenceAttention
from specinfer.model.torch.layer import Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables
from specinfer.model.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """Configuration and tensors of an EAGLE model."""

    config: ModelConfig
    """The target's sizes, with one layer and the draft vocabulary."""
    tensors: Mapping[str, torch.Tensor]
    """Tensors by name, as `specinfer.drafters.published.eagle3.EagleSource` returns them."""
    embedding: torch.Tensor
    """[V, hidden]"""
    norm_before_residual: bool = False


class EagleModel:
    """EAGLE-3's layer in torch operations, with its own KV cache."""

    def __init__(self, weights: EagleWeights, dtype: torch.dtype, device: str, num_blocks: int) -> None:
        config = self.config = weights.config
        self.device, self._residual_normed = device, weights.norm_before_residual
        parts = Parts(config, weights.tensors, dtype, device)
        self._embedding = weights.embedding.to(device, dtype)
        self._fc = make_linear(parts.tensor("fc.weight"))
        self._layer, self._hidden_norm = Layer(0, config, parts), parts.norm("hidden_norm")
        self._norm, self._head = parts.norm("model.norm"), make_linear(parts.tensor("lm_head.weight"))
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(config))
        self._attention = ReferenceAttention(device)
        shape = (num_blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self._keys, self._values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        """Return fc's outputs [T, hidden] for the target's states [T, layers, hidden]."""
        return self._fc(states.to(self._embedding.device, self._embedding.dtype).flatten(1))

    def run(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows' outputs [T, hidden], given their hidden states [T, hidden]."""
        token_ids, positions, slots = (
            torch.tensor(numbers, dtype=torch.int64, device=self.device)
            for numbers in (batch.token_ids, batch.positions, batch.write_slots)
        )
        plan = self._attention.plan(batch)

        def attend(_: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self._keys.index_copy_(0, slots, key)
            self._values.index_copy_(0, slots, value)
            return self._attention.attend(query, self._keys, self._values, plan)

        embedded, normed_hidden = F.embedding(token_ids, self._embedding), self._hidden_norm(hidden)
        normed = torch.cat([self._layer.input_norm(embedded), normed_hidden], -1)
        residual = normed_hidden if self._residual_normed else hidden
        angles = self._cos[positions][:, None], self._sin[positions][:, None]
        return self._layer.after_norm(residual, normed, angles, attend)

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""
        return self._head(self._norm(outs)).float()

    def move(self, source: Slots, target: Slots) -> None:
        raise NotImplementedError("move: an EAGLE drafter drops all nodes of a tree")

    def rotate(self, slots: Slots, delta: int) -> None:
        raise NotImplementedError("rotate: an EAGLE drafter's cache has no window (kv_window)")


@dataclass(frozen=True, slots=True)
class EagleTask:
    """A growth task, and the target's hidden states for EAGLE."""

    task: GrowthTask
    states: torch.Tensor
    """[len(delta), layers, hidden] states before the delta's tokens."""
