"""Tree attention (paper, Definition 4.1) over the paged cache.

One program computes a tile of queries (rows of one request times the query heads that share a key) over one part of
the request's positions. Keys and values of the pass's own tokens are read from its projections; the programs of the
first part write them to the cache, so no program waits for another. A ragged batch takes one launch per layer. A long
request's positions are split among several programs (split-K), and `reduce_parts` joins their softmaxes:

    positions   0 ......... cached-1 | cached . length-1        the-+-cat-+-sat
    keys from   the cache, by blocks | the pass                     |     +-ran
    programs    part 0 | part 1 | part 2 | part 3                   +-dog

    seen by     the  cat  sat  ran  dog      (`the` is the last context token; x: seen)
    the          x
    cat          x    x
    sat          x    x    x
    ran          x    x         x
    dog          x                   x

`specinfer.model.gpu.description` describes masks; `specinfer.model.gpu.attention` launches the kernels.
"""

from typing import Any

import triton.language as tl

from specinfer.model.gpu.launch import kernel, unspecialised


@kernel
def _absorb(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    seen: tl.tensor,
    scale: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """Add keys [D, N] and values [N, D] to queries' softmax.

    Args:
        q: [M, D]. seen: [M, N], read if MASKED.
        peak, total, mixed: state of each query: maximum score, sum of weights, weighted sum of values.
    """
    scores = tl.dot(q, k, input_precision=PRECISION)
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    above = tl.maximum(peak, tl.max(scores, 1) * scale)
    level = tl.where(above == float("-inf"), 0.0, above)
    shares = tl.exp2(scores * scale - level[:, None])
    fade = tl.exp2(peak - level)
    mixed = mixed * fade[:, None] + tl.dot(shares.to(v.dtype), v, input_precision=PRECISION)
    return above, total * fade + tl.sum(shares, 1), mixed


@kernel
def _seen(
    place: tl.tensor,
    rows: tl.tensor,
    mine: tl.tensor,
    masks: tl.tensor,
    visible: tl.tensor,
    context: tl.tensor,
    words: tl.tensor,
) -> Any:
    """Return [M, N]: True if row m sees position `place[n]`."""
    node = place - context
    word = tl.load(
        masks + rows[:, None] * words + (node >> 5)[None, :],
        mask=mine[:, None] & (node >= 0)[None, :] & (node < words * 32)[None, :],
        other=0,
    )
    on_path = ((word >> (node & 31)[None, :]) & 1) != 0
    return (place[None, :] < visible[:, None]) | on_path


@unspecialised("rows", "words", "scale")
def attend(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    levels: tl.tensor,
    write_slots: tl.tensor,
    visible: tl.tensor,
    masks: tl.tensor,
    held: tl.tensor,
    context: tl.tensor,
    row_start: tl.tensor,
    block_start: tl.tensor,
    tile_request: tl.tensor,
    tile_start: tl.tensor,
    tile_rows: tl.tensor,
    blocks: tl.tensor,
    scale: tl.tensor,
    query_stride: tl.tensor,
    key_stride: tl.tensor,
    head_stride: tl.tensor,
    rows: tl.tensor,
    words: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Attend from one tile of queries to one part of the positions.

    Args:
        query, key, value: [rows, heads, D] and [rows, KV heads, D] of the pass, rotated; rows may have a stride.
        keys, values: [KV heads, slots, D], the layer's cache; the pass's own entries are written.
        out: [rows, heads, D], written if there is one part.
        parts, levels: [SPLITS, rows, heads, D] and [SPLITS, rows, heads], written if there are several:
            the part's attention, and log2 of the sum of exp2 of its scores.
        head_stride: elements between heads of the cache, below 2^31.
        ALIGNED: number of elements that divides all offsets of heads, in pass and cache.
    """
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count, request, start = (
        tl.load(tile_rows + tile),
        tl.load(tile_request + tile),
        tl.load(tile_start + tile),
    )
    if count == 0:
        return
    cached, base = tl.load(held + request), tl.load(context + request)
    offset = tl.load(row_start + request)
    table = blocks + tl.load(block_start + request)
    heads = tl.num_programs(1) * GROUP

    m, d = tl.arange(0, TILE), tl.arange(0, WIDTH)
    inside = d < D
    if split == 0:
        new = (m < count)[:, None] & inside[None, :]
        slot = tl.load(write_slots + start + m, mask=m < count, other=0).to(tl.int64)
        source = (start + m)[:, None] * key_stride + head * D + d[None, :]
        target = head * head_stride.to(tl.int64) + slot[:, None] * D + d[None, :]
        tl.store(keys + target, tl.load(key + source, mask=new, other=0.0), mask=new)
        tl.store(values + target, tl.load(value + source, mask=new, other=0.0), mask=new)

    row, query_head = start + m // GROUP, head * GROUP + m % GROUP
    mine = m // GROUP < count
    places = mine[:, None] & inside[None, :]
    q = tl.load(
        query + row[:, None] * query_stride + query_head[:, None] * D + d[None, :], mask=places, other=0.0
    )
    till = tl.load(visible + row, mask=mine, other=0)
    peak = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, WIDTH], tl.float32)

    n = tl.arange(0, STEP)
    length = cached + start + count - offset
    size = tl.cdiv(tl.cdiv(length, SPLITS), STEP) * STEP
    low = split * size
    high = tl.minimum(low + size, length)
    cell = row.to(tl.int64) * heads + query_head + split.to(tl.int64) * rows * heads
    if (split > 0) & (low >= length):
        tl.store(
            levels + cell, tl.full([TILE], float("-inf"), tl.float32), mask=mine
        )  # `reduce_parts` reads nothing else of an empty part
        return
    keys += head * head_stride.to(tl.int64)
    values += head * head_stride.to(tl.int64)
    # every row of a tile sees all cached context: whole steps need no mask
    whole = low + tl.maximum(tl.minimum(high, tl.minimum(cached, base)) - low, 0) // STEP * STEP
    for at in range(low, whole, STEP):
        place = at + n
        entry = (tl.load(table + place // BLOCK) * BLOCK + place % BLOCK) * D
        k = tl.load(keys + (entry[None, :] + d[:, None]), mask=inside[:, None], other=0.0)
        v = tl.load(values + (entry[:, None] + d[None, :]), mask=inside[None, :], other=0.0)
        peak, total, mixed = _absorb(q, k, v, place, scale, peak, total, mixed, False, PRECISION)
    added = (key.to(tl.int64) - keys.to(tl.int64)) // (key.dtype.element_ty.primitive_bitwidth // 8)
    shift = (value.to(tl.int64) - values.to(tl.int64)) // (key.dtype.element_ty.primitive_bitwidth // 8)
    for at in range(whole, high, STEP):
        place = at + n
        there, old = place < high, place < cached
        block = tl.load(table + place // BLOCK, mask=there & old, other=0)
        entry = (block * BLOCK + place % BLOCK).to(tl.int64) * D
        source = (offset + place - cached) * key_stride.to(tl.int64) + head * D
        k_at = tl.multiple_of(tl.where(old, entry, added + source), ALIGNED)
        v_at = tl.multiple_of(tl.where(old, entry, shift + source), ALIGNED)
        k = tl.load(keys + (k_at[None, :] + d[:, None]), mask=there[None, :] & inside[:, None], other=0.0)
        v = tl.load(values + (v_at[:, None] + d[None, :]), mask=there[:, None] & inside[None, :], other=0.0)
        seen = _seen(place, row, mine, masks, till, base, words) & there[None, :]
        peak, total, mixed = _absorb(q, k, v, seen, scale, peak, total, mixed, True, PRECISION)

    divisor = tl.where(total > 0, total, 1.0)  # 0 in a part that the row does not see: its peak is -infinity
    result = mixed / divisor[:, None]
    if SPLITS == 1:
        tl.store(out + cell[:, None] * D + d[None, :], result.to(out.dtype.element_ty), mask=places)
    else:
        tl.store(parts + cell[:, None] * D + d[None, :], result, mask=places)
        tl.store(levels + cell, peak + tl.log2(divisor), mask=mine)


@kernel
def reduce_parts(
    parts: tl.tensor,
    levels: tl.tensor,
    out: tl.tensor,
    cells: tl.tensor,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Join a row's parts: their mean, weighted by exp2 of their levels.

    Rows of no request are unchanged.
    """
    cell = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    level = tl.load(levels + s.to(tl.int64) * cells + cell)
    top = tl.max(level, 0)
    if top == float("-inf"):
        return
    weight = tl.exp2(level - top)
    at = (s.to(tl.int64) * cells + cell)[:, None] * D + d[None, :]
    part = tl.load(parts + at, mask=(weight > 0)[:, None] & (d < D)[None, :], other=0.0)
    joined = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + cell * D + d, joined.to(out.dtype.element_ty), mask=d < D)
