"""Kernels that choose tokens from logits, greedily or by noise.

    scan        one program per row and BLOCK columns: maximum logit, sum of exp((x - maximum) / T), winning token
    conclude    one program per row: joins the blocks; P of the winner and of the excerpt's tokens

The noise equals that of `specinfer.model.sampling.noise`, bit for bit. All arithmetic is in float64, as in the
reference. Exponential and logarithm may differ in the last bit, so the same token wins unless two tokens are within
a relative 1e-15.
"""

from typing import Any

import triton.language as tl

from specinfer.model.gpu.launch import kernel, unspecialised

_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@kernel
def exponential(key: tl.tensor, token: tl.tensor) -> Any:
    """Return exponential noise E of tokens in float64 (SplitMix64)."""
    z = key.to(tl.uint64) + (token.to(tl.uint64) + 1) * _GOLDEN
    z = (z ^ (z >> 30)) * _MIX_1
    z = (z ^ (z >> 27)) * _MIX_2
    z = z ^ (z >> 31)
    return -tl.log(((z >> 12).to(tl.float64) + 0.5) * 2.0**-52)


@unspecialised("size", "parts")
def scan(
    rows: tl.tensor,
    temperatures: tl.tensor,
    keys: tl.tensor,
    left_out: tl.tensor,
    left_out_start: tl.tensor,
    peaks: tl.tensor,
    sums: tl.tensor,
    times: tl.tensor,
    tokens: tl.tensor,
    size: tl.tensor,
    parts: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Compute maximum, sum and winner of one block of a row.

    Args:
        rows: [R] int64 addresses of rows [size] float32.
        temperatures: [R] float64; 0: greedy. keys: [R] int64 noise keys.
        left_out, left_out_start: excerpts' tokens, which cannot win, and [R + 1] each row's start among them.
        peaks, sums, times, tokens: [R, parts] results. Only `peaks` include excerpts' tokens. Sums are of weights
            exp((x - peak) / T). Times are E / weight of the winner; in greedy rows, its distance to the peak.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(rows + row).to(tl.pointer_type(tl.float32))
    temperature = tl.load(temperatures + row)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(start + column, mask=column < size, other=float("-inf"))
    x = tl.where(x == x, x, float("inf"))  # a NaN makes the row unusable, as an infinity does
    peak = tl.max(x, 0)
    usable = tl.abs(peak) < float("inf")
    shifted = tl.where(usable, x - tl.where(usable, peak, 0.0), float("-inf")).to(tl.float64)
    allowed = shifted > float("-inf")
    for i in range(tl.load(left_out_start + row), tl.load(left_out_start + row + 1)):
        allowed = allowed & (column != tl.load(left_out + i))
    greedy = temperature == 0
    weight = tl.where(allowed, tl.exp(shifted / tl.where(greedy, 1.0, temperature)), 0.0)
    there = weight > 0
    arrival = exponential(tl.load(keys + row), column) / tl.where(there, weight, 1.0)
    time = tl.where(greedy, -shifted, arrival)
    time = tl.where(tl.where(greedy, allowed, there), time, float("inf"))
    least = tl.min(time, 0)
    cell = row * parts + part
    tl.store(peaks + cell, peak)
    tl.store(sums + cell, tl.sum(weight, 0))
    tl.store(times + cell, least)
    tl.store(tokens + cell, tl.min(tl.where(time == least, column, 2**31 - 1), 0))


@unspecialised("parts")
def conclude(
    rows: tl.tensor,
    temperatures: tl.tensor,
    left_out: tl.tensor,
    left_out_start: tl.tensor,
    peaks: tl.tensor,
    sums: tl.tensor,
    times: tl.tensor,
    tokens: tl.tensor,
    found: tl.tensor,
    p: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """Join the blocks of one row; compute the winner's P.

    Args:
        found: [R, 3] float64: the winner (-1 if the row is not finite), its P, and the sum of P without excerpt.
        p: float64, P of the excerpt's tokens.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    inside, cell = part < parts, row * parts + part
    start = tl.load(rows + row).to(tl.pointer_type(tl.float32))
    temperature = tl.load(temperatures + row)
    divisor = tl.where(temperature == 0, 1.0, temperature)
    peak = tl.load(peaks + cell, mask=inside, other=float("-inf"))
    top = tl.max(peak, 0)
    usable = tl.abs(top) < float("inf")
    base = tl.where(usable, top, 0.0)
    shifted = tl.where(usable, peak - base, float("-inf")).to(tl.float64)
    share = tl.exp(shifted / divisor)
    rest = tl.sum(tl.load(sums + cell, mask=inside, other=0.0) * share, 0)
    time = tl.load(times + cell, mask=inside, other=float("inf"))
    later = time / tl.where(share > 0, share, 1.0)
    time = tl.where(temperature == 0, time - tl.where(shifted > float("-inf"), shifted, 0.0), later)
    time = tl.where(share > 0, time, float("inf"))
    least = tl.min(time, 0)
    token = tl.min(
        tl.where(time == least, tl.load(tokens + cell, mask=inside, other=2**31 - 1), 2**31 - 1), 0
    )
    won = usable & (least < float("inf"))
    weight = tl.exp((tl.load(start + token, mask=won, other=0.0) - base).to(tl.float64) / divisor)

    first, last = tl.load(left_out_start + row), tl.load(left_out_start + row + 1)
    total = rest
    for at in range(first, last, CHUNK):
        total += tl.sum(_weights(start, left_out, at, last, base, divisor, CHUNK), 0)
    total = tl.where(total > 0, total, 1.0)
    for at in range(first, last, CHUNK):
        i = at + tl.arange(0, CHUNK)
        tl.store(p + i, _weights(start, left_out, at, last, base, divisor, CHUNK) / total, mask=i < last)
    tl.store(found + row * 3, tl.where(usable, tl.where(won, token, 0), -1).to(tl.float64))
    tl.store(found + row * 3 + 1, tl.where(won, weight, 0.0) / total)
    tl.store(found + row * 3 + 2, rest / total)


@kernel
def _weights(
    start: tl.tensor,
    left_out: tl.tensor,
    at: tl.tensor,
    last: tl.tensor,
    base: tl.tensor,
    divisor: tl.tensor,
    CHUNK: tl.constexpr,
) -> Any:
    """Return weights exp((x - base) / T) of excerpt tokens, [CHUNK] float64."""
    i = at + tl.arange(0, CHUNK)
    token = tl.load(left_out + i, mask=i < last, other=0)
    x = tl.load(start + token, mask=i < last, other=float("-inf"))
    return tl.exp((x - base).to(tl.float64) / divisor)
