"""Launch of tree attention: the division of a pass among programs, and its outputs.

The kernels and their picture are in `specinfer.model.gpu.tree_kernels`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.gpu.description import LEAST_TILE, MOST_TILE, Bucket, power_above
from specinfer.model.gpu.tree_kernels import attend, reduce_parts

LEAST_PART = 256
"""Least positions of a part: joining parts costs, too. Not yet measured on a GPU."""
MOST_PARTS = 32
PROGRAMS_PER_PROCESSOR = 2
"""Programs wanted for each multiprocessor. Not yet measured on a GPU."""
MOST_STEP = 64
_STEP_BYTES = 2**14
"""Bytes of the keys of a step, before a tile of the largest size halves it: its registers are full."""
_LOG2_E = 1.4426950408889634
TOLD = (
    *("write_slots", "visible", "first", "masks", "held", "context", "row_start", "block_start"),
    *("tile_request", "tile_start", "tile_rows", "blocks"),
)
"""Sections of the description that the kernel reads, in its order."""


def splits_for(bucket: Bucket, kv_heads: int, positions: int, processors: int) -> int:
    """Return the number of parts of each request's positions: a power of two.

    Enough for every multiprocessor, as far as a part keeps enough positions.

    Args:
        positions: of the longest request.
    """
    wanted = PROGRAMS_PER_PROCESSOR * processors // max(bucket.tiles * kv_heads, 1)
    most = min(wanted, positions // LEAST_PART, MOST_PARTS)
    return 1 << max(most, 1).bit_length() - 1


def launch_options(tile: int, width: int, element_bytes: int) -> dict[str, int]:
    """Return compile options of the kernel: positions per step (STEP), warps of a program, steps under way.

    So that keys and values of the steps under way fit into the shared memory of sm_80 and registers hold the
    rest (tests/unit/model/gpu/test_compiling.py).
    """
    large = tile == MOST_TILE
    step = min(MOST_STEP, _STEP_BYTES // (width * element_bytes)) // (2 if large else 1)
    return {"STEP": max(LEAST_TILE, step), "num_warps": 8 if large else 4, "num_stages": 3}


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A pass's description on the device, by section, and the division of its requests."""

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
    """Return attention of every row of a pass over its own request; store its keys and values.

    Args:
        query: [T, H, D], rotated; key, value: [T, KV heads, D]. Rows may lie apart, heads may not.
        cache: keys and values of this layer, [KV heads, slots, D].
        out: [T, H, D], written where a row belongs to a request.
    """
    if key.stride() != value.stride():
        key, value = key.contiguous(), value.contiguous()
    rows, heads, width = query.shape
    kv_heads, splits, told = key.shape[1], plan.splits, plan.sections
    parts, levels = out, out
    if splits > 1:
        parts = torch.empty((splits, rows, heads, width), dtype=torch.float32, device=out.device)
        levels = parts.new_full((splits, rows, heads), -torch.inf)
    padded = max(power_above(width), LEAST_TILE)
    attend[plan.bucket.tiles, kv_heads, splits](
        *(query, key, value, *cache, out, parts, levels),
        *(told[name] for name in TOLD),
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
