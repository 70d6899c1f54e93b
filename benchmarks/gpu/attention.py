"""Measure the attention kernel, compared with copies and libraries.

Libraries get the same queries, keys and masks. Some need contiguous keys; gathering them from the pages is not timed:

    sdpa         torch's scaled_dot_product_attention with a mask; query heads of one KV head become rows
    flex         torch's flex_attention, compiled for the shape, with a block mask of the same visibility
    flashinfer   paged prefill with a custom mask, on the pages themselves; where it is installed
"""

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from benchmarks.gpu.run import Call, Rows, SectionContext, give_back_memory
from benchmarks.gpu.scale import Cell
from benchmarks.gpu.workload import TOLERANCE, Buffers, Workload, error_of, least_bytes, slots, visible
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.options import DTYPES

Launcher = Callable[[Buffers], Call]
"""Prepare a launch over buffers; the launch returns attention [T, H, D]."""
Prepare = Callable[[Workload], Launcher]
_ALIGNED = 16
_WORKSPACE = 128 * 2**20


def written(workload: Workload, b: Buffers) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of cache and pass [KV heads, slots, D]."""
    keys, values = (memory.clone() for memory in b.cache)
    places = workload.batch.write_slots
    keys[:, places], values[:, places] = b.key.transpose(0, 1), b.value.transpose(0, 1)
    return keys, values


def gathered(workload: Workload, b: Buffers) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return contiguous queries, keys and values.

    Queries are [B, H, N, D]; keys and values are [B, KV heads, context + N, D].
    """
    cell = workload.cell
    every = [slots(rows, range(rows.length)) for rows in workload.batch.rows]
    places = torch.tensor(every, device=b.query.device)
    key, value = (memory[:, places].transpose(0, 1).contiguous() for memory in written(workload, b))
    query = b.query.reshape(cell.batch, cell.nodes, cell.heads.query, cell.heads.width).transpose(1, 2)
    return query.contiguous(), key, value


def in_rows(out: torch.Tensor) -> torch.Tensor:
    """Reshape [B, H, N, D] to [T, H, D]."""
    return out.transpose(1, 2).flatten(0, 1)


def sdpa(workload: Workload) -> Launcher:
    """Return a launcher of torch's scaled_dot_product_attention."""
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
    """Return a launcher of torch's flex_attention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    c = workload.cell
    context, nodes = c.context, c.nodes
    tree = torch.stack([visible(workload, request)[:, context:] for request in range(c.batch)])

    def seen(batch: Any, head: Any, row: Any, place: Any) -> Any:
        node = (place - context).clamp(0, nodes - 1)
        return (place < context) | tree[batch, row, node]

    mask = create_block_mask(seen, c.batch, None, nodes, context + nodes, device=workload.device)
    torch._dynamo.reset()  # it compiles for at most eight shapes
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    grouped = c.heads.query != c.heads.kv

    def launcher(b: Buffers) -> Call:
        query, key, value = gathered(workload, b)
        return lambda: in_rows(compiled(query, key, value, block_mask=mask, enable_gqa=grouped))

    return launcher


def flashinfer(workload: Workload) -> Launcher:
    """Return a launcher of flashinfer's paged prefill."""
    import flashinfer as library  # type: ignore[import-not-found]

    c, rows, device = workload.cell, workload.batch.rows, workload.device
    starts = [0, *accumulate(len(row.blocks) for row in rows)]
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(
        torch.empty(_WORKSPACE, dtype=torch.uint8, device=device), "NHD"
    )
    indices = (
        [request * c.nodes for request in range(c.batch + 1)],
        starts,
        [block for row in rows for block in row.blocks],
        [(row.length - 1) % BLOCK_TOKENS + 1 for row in rows],
    )
    wrapper.plan(
        *(torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in indices),
        *(c.heads.query, c.heads.kv, c.heads.width, BLOCK_TOKENS),
        custom_mask=torch.cat([visible(workload, request).flatten() for request in range(c.batch)]),
        q_data_type=workload.dtype,
    )

    def launcher(b: Buffers) -> Call:
        pages = tuple(
            torch.unflatten(memory, 1, (-1, BLOCK_TOKENS)).permute(1, 2, 0, 3).contiguous()
            for memory in written(workload, b)
        )
        query = b.query.contiguous()
        return lambda: wrapper.run(query, pages)

    return launcher


LIBRARIES: Mapping[str, Prepare] = {"sdpa": sdpa, "flex": flex, "flashinfer": flashinfer}
COMPILED = ("flex",)
"""Libraries that compile for seconds per shape."""


def missing() -> dict[str, str]:
    """Return the libraries that cannot be used, with reasons."""
    if importlib.util.find_spec("flashinfer") is None:
        return {"flashinfer": "not installed"}
    return {}


log = logging.getLogger(__name__)
_MAX_SETS = 32
_SHARE_OF_MEMORY = 0.25
"""Maximum share of device memory for a cell's buffers; libraries copy them."""


def measure_bandwidth(context: SectionContext, rows: Rows) -> None:
    """Measure bytes per second of a large copy, read and written.

    The best of a few sizes counts. The kernel changes signs, since the driver would run a plain copy in a captured
    graph, more slowly (2.7 instead of 4.2 TB/s on an H200).
    """
    for share in (1, 2, 4):
        size = context.scale.copy_bytes // share
        source = torch.ones(size // 4, dtype=torch.float32, device=context.device)
        target = torch.empty_like(source)
        seconds = context.timer.launched([partial(torch.neg, source, out=target)])
        rows.append({"bytes": 2 * size, "seconds": seconds, "bytes_per_s": 2 * size / seconds})


def bandwidth(context: SectionContext) -> float:
    """Return the copy bandwidth measured in this run, in bytes per second."""
    return max(float(row["bytes_per_s"]) for row in context.results["bandwidth"])


def measure_attention(context: SectionContext, rows: Rows) -> None:
    """Append a row per cell: its times, or the reason for skipping."""
    for number, cell in enumerate(context.scale.cells):
        if context.budget.left <= 0:
            rows.append(_cell(cell) | {"skipped": "time is up"})
        elif not _fits(cell, context):
            rows.append(_cell(cell) | {"skipped": "more memory than there is"})
        else:
            context.say(f"attention: {cell}")
            rows.append(measure_cell(cell, context, compiled=number < context.scale.compiled))
            give_back_memory(context.device)


def measure_cell(cell: Cell, context: SectionContext, compiled: bool) -> dict[str, Any]:
    """Return a cell's times: our kernel's, the libraries', the bandwidth's minimum."""
    dtype = DTYPES[context.scale.dtype]
    workload, size = Workload.of(cell, dtype, context.device), least_bytes(cell, dtype.itemsize)
    count = max(1, min(_MAX_SETS, -(-context.scale.distinct_bytes // size)))
    sets = [workload.buffers(seed) for seed in range(count)]
    ours = context.timer.launched([partial(workload.launch, b) for b in sets])
    bound = size / bandwidth(context)
    row = _cell(cell) | {"bytes": size, "bound_s": bound, "kernel_s": ours, "of_bound": bound / ours}
    expected = workload.launch(sets[0]).double()
    libraries: dict[str, Any] = {}
    for name, prepare in LIBRARIES.items():
        if name in missing():
            libraries[name] = {"skipped": missing()[name]}
        elif name in COMPILED and not compiled:
            libraries[name] = {"skipped": "compiled for the first cells only"}
        else:
            libraries[name] = _library(name, partial(prepare, workload), sets, expected, context)
    times = [library["seconds"] for library in libraries.values() if "seconds" in library]
    return row | {"libraries": libraries, "over_best_library": min(times) / ours if times else None}


def _library(
    name: str,
    prepare: Callable[[], Launcher],
    sets: Sequence[Buffers],
    expected: torch.Tensor,
    context: SectionContext,
) -> dict[str, Any]:
    """Return a library's time, or the reason for skipping."""
    try:
        launcher = prepare()
        calls = [launcher(b) for b in sets]
        output: Any = calls[0]()
        error = error_of(output, expected)
        if error > 2 * TOLERANCE[output.dtype]:
            return {"skipped": f"its results differ from ours: {error:.1e}"}
        return {"seconds": context.timer.launched(calls), "error": error}
    except Exception as error:  # libraries may raise anything
        log.exception("%s failed and is skipped; other libraries are measured", name)
        return {"skipped": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "heads": f"{cell.heads.query}/{cell.heads.kv} x {cell.heads.width}",
        "batch": cell.batch,
        "context": cell.context,
        "nodes": cell.nodes,
    }


def _fits(cell: Cell, context: SectionContext) -> bool:
    if torch.device(context.device).type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(context.device)
    return 2 * least_bytes(cell, 2) < _SHARE_OF_MEMORY * free
