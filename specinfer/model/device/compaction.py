"""Moving accepted entries of the cache to where the context goes on, for all layers in one launch.

before   ... the | cat sat ran dog      accepted: cat, ran
after    ... the   cat ran
"""

import torch
import triton.language as tl

from specinfer.model.cache.sequence import Slots
from specinfer.model.device.description import power_above
from specinfer.model.device.launch import unspecialised

MOST_MOVED = 32
"""Entries that one program holds at a time; paths are rarely as long, and longer ones are left to torch."""


@unspecialised("count")
def move_entries(
    keys: tl.tensor,
    values: tl.tensor,
    moves: tl.tensor,
    count: tl.tensor,
    head_stride: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    MOST: tl.constexpr,
) -> None:
    """Copies entries within one layer and head of keys and values [layers * KV heads, slots, D].

    Args:
        moves: [2, count] the slots from which, then those to which. A program reads all that it moves
            before it writes any of it.
    """
    n, d = tl.arange(0, MOST), tl.arange(0, WIDTH)
    inside = (n < count)[:, None] & (d < D)[None, :]
    source = tl.load(moves + n, mask=n < count, other=0).to(tl.int64)
    target = tl.load(moves + count + n, mask=n < count, other=0).to(tl.int64)
    start = tl.program_id(0) * head_stride.to(tl.int64)
    here = start + source[:, None] * D + d[None, :]
    there = start + target[:, None] * D + d[None, :]
    k = tl.load(keys + here, mask=inside)
    v = tl.load(values + here, mask=inside)
    tl.debug_barrier()
    tl.store(keys + there, k, mask=inside)
    tl.store(values + there, v, mask=inside)


def move(keys: torch.Tensor, values: torch.Tensor, source: Slots, target: Slots) -> None:
    """Copies entries of keys and values [layers, KV heads, slots, D] from slots to slots."""
    moves = torch.tensor([*source, *target], dtype=torch.int32).to(keys.device, non_blocking=True)
    count, width = len(source), keys.shape[-1]
    if count > MOST_MOVED:
        here, there = moves.long().view(2, count)
        for cache in (keys, values):
            cache.index_copy_(2, there, cache.index_select(2, here))
        return
    move_entries[keys.shape[0] * keys.shape[1],](
        *(keys, values, moves, count, keys.stride(1)),
        D=width,
        WIDTH=power_above(width),
        MOST=MOST_MOVED,
    )
