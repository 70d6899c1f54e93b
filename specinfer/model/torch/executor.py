"""Runs passes of the decoder in torch, on any device."""

import torch

from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.offload.stores import LayerStore
from specinfer.model.offload.transformer import StreamedTransformer
from specinfer.model.torch.attention import ReferenceAttention
from specinfer.model.torch.linear import Surgery
from specinfer.model.torch.rotary import rotate
from specinfer.model.torch.transformer import Transformer
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights


class TorchExecutor:
    """The decoder in torch, with caches [layers, slots, KV heads, D]."""

    name = "torch"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        num_blocks: int,
        device: str = "cpu",
        store: LayerStore | None = None,
        surgery: Surgery | None = None,
    ) -> None:
        """Load the model.

        Args:
            store: store of offloaded layers; None: all layers stay on the device.
            surgery: divides the layers among tensor-parallel ranks; None: no ranks.
        """
        if store is None:
            self._model = Transformer(config, weights, dtype, device, surgery)
        else:
            self._model = StreamedTransformer(config, weights, dtype, device, store)
        self._attention = ReferenceAttention(device)
        shape = (config.layers, num_blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._device, self._config = device, config

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    @property
    def cache_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def run(self, batch: Batch) -> torch.Tensor:
        return self.logits(batch, self.hidden(batch))

    def logits(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [R, V] of logit rows from `hidden` [T, hidden]."""
        return self._model.logits(hidden[self._tensor(batch.logit_rows)])

    def hidden(self, batch: Batch, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return hidden states [T, hidden] after the layers; write keys and values.

        Args:
            x: [T, hidden] input of the first layer; None: the embeddings of the batch's tokens.
        """
        token_ids, positions, slots = map(self._tensor, (batch.token_ids, batch.positions, batch.write_slots))
        config = self._config
        plans = {back: self._attention.plan(batch, back) for back in set(config.windows) or {0}}

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys.index_copy_(0, slots, key)
            values.index_copy_(0, slots, value)
            plan = plans[config.window(layer)]
            sinks = self._model.sinks[layer]
            return self._attention.attend(
                query, keys, values, plan, config.score_scale, config.score_cap, sinks
            )

        if x is None:
            x = self._model.embed(token_ids, positions)
        return self._model.through(x, positions, attend, batch.features)

    def _tensor(self, numbers: Slots) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def move(self, source: Slots, target: Slots) -> None:
        here, there = self._tensor(source), self._tensor(target)
        for cache in (self._keys, self._values):
            # index_select copies before the write: source and target may overlap
            cache.index_copy_(1, there, cache.index_select(1, here))

    def rotate(self, slots: Slots, delta: int) -> None:
        here = self._tensor(slots)
        angles = torch.tensor(self._config.inv_freq, device=self._device).repeat(2) * delta
        turned = rotate(self._keys.index_select(1, here).float(), angles.cos(), angles.sin())
        self._keys.index_copy_(1, here, turned.to(self._keys.dtype))
