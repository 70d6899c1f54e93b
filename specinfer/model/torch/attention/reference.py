"""The oracle: gathers each request's keys and values and calls SDPA with an explicit mask.

Slow and obviously right; every other backend is tested against it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    stop: int
    slots: torch.Tensor
    mask: torch.Tensor
    """[rows, positions]: the topology-aware causal mask."""


class ReferenceAttention:
    """Explicit masks, one SDPA call per request."""

    def __init__(self, device: str) -> None:
        self._device = device

    def plan(self, batch: Batch, window: int | None = None) -> list[_Part]:
        """Return one mask and one slot table per request.

        With a window a token sees, of the context, no more than so many positions up to its own, and the
        last one.
        """
        return [self._part(rows, batch.positions[rows.start : rows.stop], window) for rows in batch.rows]

    def _part(self, rows: AttentionRows, own: Sequence[int], window: int | None) -> _Part:
        visible = torch.tensor(rows.visible, dtype=torch.int64)
        positions = torch.arange(rows.length)
        mask = positions < visible[:, None]
        for row, extra in enumerate(rows.extra):
            mask[row, extra] = True
        if window is not None:
            mask &= (positions > torch.tensor(own)[:, None] - window) | (positions >= max(rows.visible) - 1)
        blocks = torch.tensor(rows.blocks, dtype=torch.int64)
        slots = blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        return _Part(rows.start, rows.stop, slots.to(self._device), mask.to(self._device))

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: list[_Part]
    ) -> torch.Tensor:
        """Attend from every token of the pass to its own request."""
        out = torch.empty_like(query)
        for part in plan:
            q = query[part.start : part.stop].transpose(0, 1)[None]
            k = keys.index_select(0, part.slots).transpose(0, 1)[None]
            v = values.index_select(0, part.slots).transpose(0, 1)[None]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=part.mask, enable_gqa=True)
            out[part.start : part.stop] = y[0].transpose(0, 1)
        return out
