"""Launches tree attention; `specinfer.model.gpu.tree_kernels` has the kernels."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import torch

from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.gpu.description import MIN_TILE, Bucket, power_above
from specinfer.model.gpu.tree_kernels import attend, reduce_parts

MAX_PARTS = 32


class TileOptions(NamedTuple):
    """Launch options of the attention kernel for one tile size."""

    step: int
    """Maximum positions per step of the loop over keys."""
    warps: int
    """Warps of a program."""
    programs: int
    """Wanted number of programs per multiprocessor."""
    part: int
    """Minimum positions per part of a request."""
    stages: int
    """Number of steps whose loads overlap."""


_BY_TILE = {
    16: TileOptions(64, 2, 4, 64, 2),
    32: TileOptions(64, 4, 2, 256, 2),
    64: TileOptions(64, 4, 2, 256, 3),
    128: TileOptions(128, 8, 1, 256, 3),
}
"""Options by tile, among the best measured on an H200.

About 400 settings were measured. In the largest tile, steps of 128 positions gain 9 % for eight requests and lose
10 to 20 % for one request of 4,096 positions.
"""
_STEP_BYTES = 2**15
"""Maximum bytes of keys per step."""
_LOG2_E = 1.4426950408889634
_VECTOR_BYTES = 16
"""Bytes of a thread's vector load."""
KERNEL_SECTIONS = (
    *("write_slots", "visible", "masks", "held", "context", "row_start", "block_start"),
    *("tile_request", "tile_start", "tile_rows", "blocks"),
)
"""Sections of the description that the kernel reads, in argument order."""


def splits_for(bucket: Bucket, kv_heads: int, positions: int, processors: int) -> int:
    """Return the number of parts of requests' positions, a power of two.

    Every multiprocessor gets programs, unless parts would be too small.

    Args:
        positions: positions of the longest request.
    """
    options = _BY_TILE[bucket.tile]
    wanted = options.programs * processors // max(bucket.usual_tiles * kv_heads, 1)
    max_parts = min(wanted, positions // options.part, MAX_PARTS)
    return 1 << max(max_parts, 1).bit_length() - 1


def launch_options(tile: int, width: int, element_bytes: int) -> dict[str, int]:
    """Return compile options: positions per step, warps, pipeline stages.

    Keys and values of overlapping steps fit in the shared memory of sm_80 (tests/unit/model/gpu/test_compiling.py).
    """
    options = _BY_TILE[tile]
    step = min(options.step, _STEP_BYTES // (width * element_bytes))
    return {"STEP": max(MIN_TILE, step), "num_warps": options.warps, "num_stages": options.stages}


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A pass's description on the device, and its number of parts."""

    bucket: Bucket
    sections: Mapping[str, torch.Tensor]
    splits: int
    parts: torch.Tensor
    """Attention of each part, [splits, rows, H, D] float32; empty without splits."""
    levels: torch.Tensor
    """log2 of each part's sum of weights, [splits, rows, H] float32.

    Rows of no request stay -infinity.
    """

    @classmethod
    def of(
        cls, bucket: Bucket, sections: Mapping[str, torch.Tensor], splits: int, heads: int, width: int
    ) -> "AttentionPlan":
        """Plan a pass, with memory for parts that all layers share."""
        shape = (splits if splits > 1 else 0, bucket.rows, heads)
        parts = torch.empty((*shape, width), dtype=torch.float32, device=sections["masks"].device)
        return cls(bucket, sections, splits, parts, parts.new_full(shape, -torch.inf))


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    plan: AttentionPlan,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attend from each row to its request; store its keys and values.

    Args:
        query: [T, H, D], rotated; key, value: [T, KV heads, D]. Rows may have a stride, heads may not.
        cache: keys and values of this layer, [KV heads, slots, D].
        out: [T, H, D], written for rows of requests.
    """
    if key.stride() != value.stride():
        key, value = key.contiguous(), value.contiguous()
    rows, heads, width = query.shape
    kv_heads, splits, sections = key.shape[1], plan.splits, plan.sections
    padded = max(power_above(width), MIN_TILE)
    attend[plan.bucket.tiles, kv_heads, splits](
        *(query, key, value, *cache, out, plan.parts, plan.levels),
        *(sections[name] for name in KERNEL_SECTIONS),
        *(_LOG2_E / width**0.5, query.stride(0), key.stride(0), cache[0].stride(0), rows, plan.bucket.words),
        D=width,
        WIDTH=padded,
        GROUP=heads // kv_heads,
        TILE=plan.bucket.tile,
        SPLITS=splits,
        BLOCK=BLOCK_TOKENS,
        ALIGNED=_alignment(width, key, value, *cache),
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        **launch_options(plan.bucket.tile, padded, query.element_size()),
    )
    if splits > 1:
        cells = rows * heads
        reduce_parts[cells,](plan.parts, plan.levels, out, cells, D=width, WIDTH=padded, SPLITS=splits)
    return out


def _alignment(width: int, *tensors: torch.Tensor) -> int:
    """Return the number of elements that divides all heads' offsets."""
    size = tensors[0].element_size()
    starts = (number // size for tensor in tensors for number in (tensor.data_ptr(), tensor.stride(0) * size))
    return gcd(_VECTOR_BYTES // size, width, *starts)
