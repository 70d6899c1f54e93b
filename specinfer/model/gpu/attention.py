"""Launches the kernels of tree attention (`specinfer.model.gpu.tree_kernels`)."""

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
    """Maximum cache positions that a program reads per loop iteration."""
    warps: int
    programs: int
    """Target number of programs per multiprocessor."""
    part: int
    """Minimum positions of a request per program (split-K)."""
    stages: int
    """Number of loop iterations whose loads overlap."""


_BY_TILE = {
    16: TileOptions(64, 2, 4, 64, 2),
    32: TileOptions(64, 4, 2, 256, 2),
    64: TileOptions(64, 4, 2, 256, 3),
    128: TileOptions(128, 8, 1, 256, 3),
}
"""Launch options by tile size, from about 400 measured on an H200.

In the largest tile, steps of 128 positions gain 9 % for eight requests and lose 10 to 20 % for one request of 4,096
positions.
"""
_STEP_BYTES = 2**15
"""Maximum bytes of keys per loop iteration."""
_LOG2_E = 1.4426950408889634
_VECTOR_BYTES = 16
"""Bytes of a thread's vector load."""
KERNEL_SECTIONS = (
    *("write_slots", "visible", "masks", "held", "context", "row_start", "block_start"),
    *("tile_request", "tile_start", "tile_rows", "blocks"),
)
"""Sections of the pass's description that the kernel reads, in argument order."""


def splits_for(bucket: Bucket, kv_heads: int, positions: int, processors: int) -> int:
    """Return the number of programs that share a request's positions (split-K).

    It is a power of two: as many as occupy all multiprocessors, but not more than the positions fill.

    Args:
        positions: number of positions of the longest request.
    """
    options = _BY_TILE[bucket.tile]
    wanted = options.programs * processors // max(bucket.usual_tiles * kv_heads, 1)
    max_parts = min(wanted, positions // options.part, MAX_PARTS)
    return 1 << max(max_parts, 1).bit_length() - 1


def launch_options(tile: int, width: int, element_bytes: int) -> dict[str, int]:
    """Return the kernel's compile options for a tile size.

    Keys and values of overlapping steps fit in the shared memory of sm_80 (tests/unit/model/gpu/test_compiling.py).
    """
    options = _BY_TILE[tile]
    step = min(options.step, _STEP_BYTES // (width * element_bytes))
    return {"STEP": max(MIN_TILE, step), "num_warps": options.warps, "num_stages": options.stages}


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A pass's description on the device, and buffers for split positions."""

    bucket: Bucket
    sections: Mapping[str, torch.Tensor]
    splits: int
    parts: torch.Tensor
    """[splits, rows, H, D] float32: attention over each part; empty without splits."""
    levels: torch.Tensor
    """[splits, rows, H] float32: log2 of each part's sum of softmax weights.

    Rows without a request stay -infinity.
    """

    @classmethod
    def of(
        cls, bucket: Bucket, sections: Mapping[str, torch.Tensor], splits: int, heads: int, width: int
    ) -> "AttentionPlan":
        """Return the plan of a pass; all layers share its buffers."""
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
    """Compute attention of all rows; store the pass's keys and values.

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
    """Return the alignment of all heads in elements, at most a vector."""
    size = tensors[0].element_size()
    starts = (number // size for tensor in tensors for number in (tensor.data_ptr(), tensor.stride(0) * size))
    return gcd(_VECTOR_BYTES // size, width, *starts)
