"""Kernels of a layer: norms, rotation, gated activation, products of few rows.

Each kernel is one launch. They are in Triton instead of `torch.compile`, so that graphs are captured fast and without
a C++ compiler.
"""

import torch
import triton.language as tl

from specinfer.model.cache.sequence import Slots
from specinfer.model.gpu.description import power_above
from specinfer.model.gpu.launch import kernel, unspecialised


@kernel
def add_norm(
    x: tl.tensor,
    change: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    """Compute total = x + change [T, SIZE], and normed, its RMS norm.

    If not ADDS, normed is the norm of x, and `change` is not read.
    """
    i = tl.arange(0, WIDTH)
    inside, at = i < SIZE, tl.program_id(0).to(tl.int64) * SIZE + i
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        value += tl.load(change + at, mask=inside, other=0.0)
        tl.store(total + at, value, mask=inside)
    wide = value.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    scale = tl.load(weight + i, mask=inside, other=0.0)
    tl.store(normed + at, scale * wide.to(value.dtype), mask=inside)


@kernel
def turn_heads(
    projected: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    stride: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMS: tl.constexpr,
) -> None:
    """Rotate a token's query and key heads in place, by position.

    Args:
        projected: [T, HEADS + 2 KV_HEADS, D]: queries, keys, values.
        cos, sin: [T, 2 HALF], of each token's position; the second half repeats the first.
        query_norm, key_norm: [D], if NORMS: heads are normed before rotation, then 2 HALF = D.
    """
    token = tl.program_id(0).to(tl.int64)
    head, i = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (head < HEADS + KV_HEADS)[:, None] & (i < HALF)[None, :]
    first = projected + token * stride + head[:, None] * D + i[None, :]
    a = tl.load(first, mask=inside, other=0.0)
    b = tl.load(first + HALF, mask=inside, other=0.0)
    if NORMS:
        wide_a, wide_b = a.to(tl.float32), b.to(tl.float32)
        share = tl.rsqrt((tl.sum(wide_a * wide_a, 1) + tl.sum(wide_b * wide_b, 1)) / D + eps)[:, None]
        is_query, there = (head < HEADS)[:, None], (i < HALF)[None, :]
        low = tl.where(
            is_query,
            tl.load(query_norm + i[None, :], mask=there, other=0.0),
            tl.load(key_norm + i[None, :], mask=there, other=0.0),
        )
        high = tl.where(
            is_query,
            tl.load(query_norm + HALF + i[None, :], mask=there, other=0.0),
            tl.load(key_norm + HALF + i[None, :], mask=there, other=0.0),
        )
        a, b = low * (wide_a * share).to(a.dtype), high * (wide_b * share).to(b.dtype)
    c = tl.load(cos + token * 2 * HALF + i, mask=i < HALF, other=0.0)[None, :]
    s = tl.load(sin + token * 2 * HALF + i, mask=i < HALF, other=0.0)[None, :]
    tl.store(first, a * c - b * s, mask=inside)
    tl.store(first + HALF, b * c + a * s, mask=inside)


@kernel
def gate(both: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Compute out [T, size] = silu(gate) * up of both [T, 2 size]."""
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    g = tl.load(both + row * 2 * size + i, mask=inside, other=0.0)
    up = tl.load(both + row * 2 * size + size + i, mask=inside, other=0.0)
    wide = g.to(tl.float32)
    tl.store(out + row * size + i, (wide / (1 + tl.exp(-wide))).to(g.dtype) * up, mask=inside)


@unspecialised("rows")
def multiply(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    SIZE: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Compute out = x W^T + bias [rows, columns] for few rows.

    Every weight is read once. A row's result does not depend on the number of rows.

    Args:
        x: [rows, SIZE] with row stride `stride`; weight: [columns, SIZE]; bias: [columns], read if BIASED.
        ROWS: a power of two >= rows. STEP: positions per step along SIZE; it divides SIZE.
    """
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    given = (row < rows)[None, :]
    weight += (
        tl.minimum(column, columns - 1).to(tl.int64)[:, None] * SIZE
    )  # excess columns repeat the last one
    x += row[None, :] * stride  # excess rows read other memory: many programs at one address are slow
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for at in range(0, SIZE, STEP):
        i = at + tl.arange(0, STEP)
        total = tl.dot(tl.load(weight + i[None, :]), tl.load(x + i[:, None], mask=given, other=0.0), total)
    if BIASED:
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[:, None]
    place = row[None, :].to(tl.int64) * columns + column[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(column < columns)[:, None] & given)


MAX_MOVED = 32
"""Maximum cache entries per call of `move_entries`; for more, torch is used."""


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
    """Copy cache entries within one layer and head.

    Args:
        keys, values: [layers * KV heads, slots, D].
        moves: [2, count] source slots, then target slots. A program reads all its entries before it writes
            any.
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
    """Copy entries of keys and values [layers, KV heads, slots, D]."""
    moves = torch.tensor([*source, *target], dtype=torch.int32).to(keys.device, non_blocking=True)
    count, width = len(source), keys.shape[-1]
    if count > MAX_MOVED:
        here, there = moves.long().view(2, count)
        for cache in (keys, values):
            cache.index_copy_(2, there, cache.index_select(2, here))
        return
    move_entries[keys.shape[0] * keys.shape[1],](
        *(keys, values, moves, count, keys.stride(1)),
        D=width,
        WIDTH=power_above(width),
        MOST=MAX_MOVED,
    )
