"""Computes attention with explicit masks, by torch's SDPA.

It is slow, but simple enough to be the reference of every other backend's tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.torch.parts import soft_capped


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Positions that a request's rows of a pass see."""

    start: int
    stop: int
    slots: torch.Tensor
    mask: torch.Tensor
    """[rows, positions]: the topology-aware causal mask."""

    def without_unseen(self) -> "RowsPlan":
        """Return the plan without the first positions that no row sees."""
        first = int(self.mask.any(0).int().argmax())
        return replace(self, slots=self.slots[first:], mask=self.mask[:, first:])


class ReferenceAttention:
    """Attention with explicit masks, one SDPA call per request."""

    def __init__(self, device: str) -> None:
        self._device = device

    def plan(self, batch: Batch, look_back: int = 0, window: int | None = None) -> list[RowsPlan]:
        """Return one mask and one slot table per request.

        Args:
            look_back: number of last positions on its path that a token sees, its own included; 0: all.
            window: number of last context positions that a token sees, at least the last one; None: all.
        """
        return [
            self._part(rows, batch.positions[rows.start : rows.stop], look_back, window)
            for rows in batch.rows
        ]

    def _part(
        self, rows: AttentionRows, own_slots: Sequence[int], look_back: int, window: int | None
    ) -> RowsPlan:
        visible = torch.tensor(rows.visible, dtype=torch.int64)
        positions = torch.arange(rows.length)
        mask = positions < visible[:, None]
        for row, extra in enumerate(rows.extra):
            mask[row, extra] = True
            if look_back:
                unseen = max(rows.visible[row] + len(extra) - look_back, 0)
                mask[row, : min(unseen, rows.visible[row])] = False
                mask[row, extra[: max(unseen - rows.visible[row], 0)]] = False
        if window is not None:
            mask &= (positions > torch.tensor(own_slots)[:, None] - window) | (
                positions >= max(rows.visible) - 1
            )
        blocks = torch.tensor(rows.blocks, dtype=torch.int64)
        slots = blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        return RowsPlan(rows.start, rows.stop, slots.to(self._device), mask.to(self._device))

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        plan: list[RowsPlan],
        scale: float | None = None,
        cap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return attention of every token of the pass over its request.

        Args:
            cap: bound c of scores s: c * tanh(s / c); 0: no bound.
            sinks: [H] extra scores in each softmax, without a value.
        """
        out = torch.empty_like(query)
        for part in plan:
            q = query[part.start : part.stop].transpose(0, 1)[None]
            k = keys.index_select(0, part.slots).transpose(0, 1)[None]
            v = values.index_select(0, part.slots).transpose(0, 1)[None]
            if cap or sinks is not None:
                y = _explicit(q, k, v, part.mask, scale or q.shape[-1] ** -0.5, cap, sinks)
            else:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=part.mask, scale=scale, enable_gqa=True)
            out[part.start : part.stop] = y[0].transpose(0, 1)
        return out


def _explicit(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    cap: float,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return attention [1, H, rows, D]; SDPA has no `cap` or `sinks`."""
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = soft_capped(query @ keys.transpose(2, 3) * scale, cap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return weights[..., : keys.shape[2]] @ values
