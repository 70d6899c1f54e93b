"""Common parts of published drafts: the memory of their rows, and what they borrow from the target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots
from specinfer.model.heads import output_head
from specinfer.model.torch.attention.reference import ReferenceAttention
from specinfer.model.torch.layer import Attend
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING


class RowMemory:
    """Keys and values of rows, by layer and slot."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: str, num_blocks: int) -> None:
        self._attention, self._device = ReferenceAttention(device), device
        shape = (num_blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self.keys, self.values = (
            [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)] for _ in range(2)
        )

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Keep keys and values [T, KV heads, D] in slots."""
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)

    def attention(self, batch: Batch, windows: Sequence[int | None]) -> Attend:
        """Return the attention of a batch's rows in layers with these windows; the rows are kept."""
        slots = torch.tensor(batch.write_slots, dtype=torch.int64, device=self._device)
        plans = {window: self._attention.plan(batch, window=window) for window in set(windows)}

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self.write(layer, slots, key, value)
            return self._attention.attend(query, self.keys[layer], self.values[layer], plans[windows[layer]])

        return attend

    def move(self, source: Slots, target: Slots) -> None:
        """Fail: no row of a draft is kept, so none moves."""
        raise NotImplementedError("drafts are dropped whole")

    def rotate(self, slots: Slots, delta: int) -> None:
        """Fail: the cache has no window, so nothing turns."""
        raise NotImplementedError("this cache has no window")


def slots_of(sequence: KVSequence, start: int, stop: int) -> torch.Tensor:
    """Return the slots of a sequence's positions from `start` to `stop`."""
    places = torch.arange(start, stop)
    return torch.tensor(sequence.blocks)[places // BLOCK_TOKENS] * BLOCK_TOKENS + places % BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Tensors that a draft shares with its target."""

    embedding: torch.Tensor
    """[V, hidden]"""
    head: torch.Tensor
    """[draft vocabulary, hidden]"""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        target: Mapping[str, torch.Tensor],
        own: Mapping[str, torch.Tensor],
        token_ids: torch.Tensor,
    ) -> "Borrowed":
        """Return a draft's own tensors where it has them, else those of its target."""
        embedding, head = own.get("embed_tokens.weight"), own.get("lm_head.weight")
        return cls(
            target[EMBEDDING] if embedding is None else embedding,
            output_head(config, target)[token_ids] if head is None else head,
        )


def in_order(states: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
    """Return hidden states [R, layers, hidden] of ascending layers in the order of a draft: [R, all]."""
    ascending = sorted(layers)
    return states[:, [ascending.index(layer) for layer in layers]].flatten(1)
