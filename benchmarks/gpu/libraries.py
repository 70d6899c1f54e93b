"""Attention of others over the same queries, keys and masks. Keys that they want contiguous are given so:
what gathering them from the pages costs is not counted.

    sdpa         torch's scaled_dot_product_attention with a mask; heads that share a key as further rows
    flex         torch's flex_attention, compiled for the shape, with a block mask of the same visibility
    flashinfer   paged prefill with a custom mask, on the pages themselves; where it is installed
"""

import importlib.util
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch

from benchmarks.gpu.check import visible
from benchmarks.gpu.timers import Call
from benchmarks.gpu.workload import Buffers, Workload, slots
from specinfer.model.cache.sequence import BLOCK_TOKENS

Launcher = Callable[[Buffers], Call]
"""Prepares a launch over buffers; what it returns gives [T, H, D] when called."""
Prepare = Callable[[Workload], Launcher]
_ALIGNED = 16
_WORKSPACE = 128 * 2**20


def written(workload: Workload, b: Buffers) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache with the pass's own keys and values, [KV heads, slots, D] each."""
    keys, values = (memory.clone() for memory in b.cache)
    places = workload.batch.write_slots
    keys[:, places], values[:, places] = b.key.transpose(0, 1), b.value.transpose(0, 1)
    return keys, values


def gathered(workload: Workload, b: Buffers) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query [B, H, N, D], key and value [B, KV heads, context + N, D]."""
    cell = workload.cell
    every = [slots(rows, range(rows.length)) for rows in workload.batch.rows]
    places = torch.tensor(every, device=b.query.device)
    key, value = (memory[:, places].transpose(0, 1).contiguous() for memory in written(workload, b))
    query = b.query.reshape(cell.batch, cell.nodes, cell.heads.query, cell.heads.width).transpose(1, 2)
    return query.contiguous(), key, value


def in_rows(out: torch.Tensor) -> torch.Tensor:
    """[T, H, D] of [B, H, N, D]."""
    return out.transpose(1, 2).flatten(0, 1)


def sdpa(workload: Workload) -> Launcher:
    """Return the launcher of the module's table."""
    c, dtype = workload.cell, workload.dtype
    group, length = c.heads.query // c.heads.kv, c.context + c.nodes
    padded = -(-length // _ALIGNED) * _ALIGNED
    mask = torch.full((c.batch, 1, group * c.nodes, padded), -torch.inf, dtype=dtype, device=workload.device)
    for request in range(c.batch):
        seen = visible(workload, request).repeat(group, 1)
        mask[request, 0, :, :length].masked_fill_(seen, 0.0)
    bias = mask[..., :length]

    def launcher(b: Buffers) -> Call:
        query, key, value = gathered(workload, b)
        folded = query.reshape(c.batch, c.heads.kv, group * c.nodes, c.heads.width)

        def call() -> torch.Tensor:
            out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=bias)
            return in_rows(out.reshape(c.batch, c.heads.query, c.nodes, c.heads.width))

        return call

    return launcher


def flex(workload: Workload) -> Launcher:
    """Return the launcher of the module's table."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    c = workload.cell
    context, nodes = c.context, c.nodes
    tree = torch.stack([visible(workload, request)[:, context:] for request in range(c.batch)])

    def seen(batch: Any, head: Any, row: Any, place: Any) -> Any:
        node = (place - context).clamp(0, nodes - 1)
        return (place < context) | tree[batch, row, node]

    mask = create_block_mask(seen, c.batch, None, nodes, context + nodes, device=workload.device)
    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # it remembers eight shapes, then gives up
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    grouped = c.heads.query != c.heads.kv

    def launcher(b: Buffers) -> Call:
        query, key, value = gathered(workload, b)
        return lambda: in_rows(compiled(query, key, value, block_mask=mask, enable_gqa=grouped))

    return launcher


def flashinfer(workload: Workload) -> Launcher:
    """Return the launcher of the module's table."""
    import flashinfer as library

    c, rows, device = workload.cell, workload.batch.rows, workload.device
    starts = [0, *accumulate(len(each.blocks) for each in rows)]
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(_WORKSPACE, dtype=torch.uint8, device=device), "NHD"
    )
    indices = (
        [request * c.nodes for request in range(c.batch + 1)],
        starts,
        [block for each in rows for block in each.blocks],
        [(each.length - 1) % BLOCK_TOKENS + 1 for each in rows],
    )
    wrapper.plan(
        *(torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in indices),
        *(c.heads.query, c.heads.kv, c.heads.width, BLOCK_TOKENS),
        custom_mask=torch.cat([visible(workload, request).flatten() for request in range(c.batch)]),
        q_data_type=workload.dtype,
    )

    def launcher(b: Buffers) -> Call:
        pages = tuple(
            memory.unflatten(1, (-1, BLOCK_TOKENS)).permute(1, 2, 0, 3).contiguous()
            for memory in written(workload, b)
        )
        query = b.query.contiguous()
        return lambda: wrapper.run(query, pages)

    return launcher


LIBRARIES: Mapping[str, Prepare] = {"sdpa": sdpa, "flex": flex, "flashinfer": flashinfer}
COMPILED = ("flex",)
"""Take seconds for every shape."""


def missing() -> dict[str, str]:
    """Libraries that are not installed, and why they are left out."""
    if importlib.util.find_spec("flashinfer") is None:
        return {"flashinfer": "not installed"}
    return {}
