"""Launch of tree attention: splits and outputs.

The kernels and their picture are in `specinfer.model.gpu.tree_kernels`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.gpu.description import MIN_TILE, Bucket, power_above
from specinfer.model.gpu.tree_kernels import attend, reduce_parts

MAX_PARTS = 32


class TileOptions(NamedTuple):
    """Launch of the kernel for tiles of one size."""

    step: int
    """Maximum positions per step of the loop over keys."""
    warps: int
    """Warps of a program."""
    programs: int
    """Programs wanted for each multiprocessor."""
    part: int
    """Minimum positions of a part of a request."""
    stages: int
    """Steps of the loop under way at once."""


_MIDDLE = TileOptions(64, 4, 2, 256, 2)
_BY_TILE = {16: TileOptions(128, 4, 4, 128, 2), 32: _MIDDLE, 64: _MIDDLE, 128: TileOptions(64, 8, 1, 256, 3)}
"""Options by tile, near the best of 456 settings on an H200.

Tiles of 32 were not among them. In the largest tile, steps of 128 positions gain 8 to 16 % for several
requests or over 32,768 positions, and lose 5 to 14 % for one request over 4,096, with few steps per part.
"""
_STEP_BYTES = 2**15
"""Maximum bytes of a step's keys."""
_LOG2_E = 1.4426950408889634
TOLD = (
    *("write_slots", "visible", "first", "masks", "held", "context", "row_start", "block_start"),
    *("tile_request", "tile_start", "tile_rows", "blocks"),
)
"""Sections of the description that the kernel reads, in its order."""


def splits_for(bucket: Bucket, kv_heads: int, positions: int, processors: int) -> int:
    """Return the number of parts of requests' positions, a power of two.

    Enough for every multiprocessor, if parts are large enough.

    Args:
        positions: of the longest request.
    """
    options = _BY_TILE[bucket.tile]
    wanted = options.programs * processors // max(bucket.tiles * kv_heads, 1)
    max_parts = min(wanted, positions // options.part, MAX_PARTS)
    return 1 << max(max_parts, 1).bit_length() - 1


def launch_options(tile: int, width: int, element_bytes: int) -> dict[str, int]:
    """Return compile options: positions per step, warps, pipeline stages.

    Keys and values of the steps under way fit into the shared memory of sm_80
    (tests/unit/model/gpu/test_compiling.py).
    """
    options = _BY_TILE[tile]
    step = min(options.step, _STEP_BYTES // (width * element_bytes))
    return {"STEP": max(MIN_TILE, step), "num_warps": options.warps, "num_stages": options.stages}


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A pass's description on the device, and the splits of requests."""

    bucket: Bucket
    sections: Mapping[str, torch.Tensor]
    splits: int


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
        query: [T, H, D], rotated; key, value: [T, KV heads, D]. Rows may lie apart, heads may not.
        cache: keys and values of this layer, [KV heads, slots, D].
        out: [T, H, D], written for rows of requests.
    """
    if key.stride() != value.stride():
        key, value = key.contiguous(), value.contiguous()
    rows, heads, width = query.shape
    kv_heads, splits, sections = key.shape[1], plan.splits, plan.sections
    parts, levels = out, out
    if splits > 1:
        parts = torch.empty((splits, rows, heads, width), dtype=torch.float32, device=out.device)
        levels = parts.new_full((splits, rows, heads), -torch.inf)
    padded = max(power_above(width), MIN_TILE)
    attend[plan.bucket.tiles, kv_heads, splits](
        *(query, key, value, *cache, out, parts, levels),
        *(sections[name] for name in TOLD),
        *(_LOG2_E / width**0.5, query.stride(0), key.stride(0), cache[0].stride(0), rows, plan.bucket.words),
        D=width,
        WIDTH=padded,
        GROUP=heads // kv_heads,
        TILE=plan.bucket.tile,
        SPLITS=splits,
        BLOCK=BLOCK_TOKENS,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        **launch_options(plan.bucket.tile, padded, query.element_size()),
    )
    if splits > 1:
        reduce_parts[rows * heads,](parts, levels, out, rows * heads, D=width, WIDTH=padded, SPLITS=splits)
    return out
