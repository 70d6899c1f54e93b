"""Check and time attention launches on random trees.

The check against float64 uses output buffers filled with NaN, and runs before any timing. Libraries get the same
queries, keys and masks, contiguous; gathering them from the pages is not timed.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.run import Cell, GpuContext, WrongKernelError
from benchmarks.gpu.timers import Call
from benchmarks.tables import head, line
from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, blocks_for
from specinfer.model.gpu.attention import AttentionPlan, splits_for, tree_attention
from specinfer.model.gpu.description import describe, exact_bucket
from specinfer.model.gpu.launch import processors
from specinfer.model.gpu.layer_kernels import move
from specinfer.model.options import torch_dtype

log = logging.getLogger(__name__)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
"""Maximum ||found - exact|| / ||exact||; bfloat16 operands give 1e-3 to 1e-2."""
_MAX_SETS = 32


def random_paths(rng: np.random.Generator, nodes: int) -> list[list[int]]:
    """Return each node's path from the root in a random tree."""
    paths = [[0]]
    for node in range(1, nodes):
        paths.append([*paths[int(rng.integers(0, node))], node])
    return paths


def pass_of(cell: Cell, seed: int) -> Batch:
    """Return a pass of `cell.batch` requests with random trees and cache blocks."""
    rng = np.random.default_rng(seed)
    length = cell.context + cell.nodes
    order = rng.permutation(cell.batch * blocks_for(length)).reshape(cell.batch, -1)
    batch = Batch([], [], [], [], [], [])
    for request, blocks in enumerate(order.tolist()):
        start = request * cell.nodes
        paths = random_paths(rng, cell.nodes)
        extra = [[cell.context + node for node in path] for path in paths]
        rows = AttentionRows(start, start + cell.nodes, length, blocks, [cell.context] * cell.nodes, extra)
        batch.rows.append(rows)
        batch.positions.extend(cell.context + len(path) - 1 for path in paths)
        batch.write_slots.extend(slots(rows, range(cell.context, length)))
    batch.token_ids.extend([1] * cell.batch * cell.nodes)
    batch.logit_rows.extend(range(cell.batch * cell.nodes))
    return batch


def slots(rows: AttentionRows, positions: Sequence[int]) -> list[int]:
    """Return the cache slots of a request's positions."""
    return [rows.blocks[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in positions]


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers of one launch; `out` is filled with NaN."""

    query: torch.Tensor
    """[T, H, D]"""
    key: torch.Tensor
    value: torch.Tensor
    cache: tuple[torch.Tensor, torch.Tensor]
    """[KV heads, slots, D]"""
    out: torch.Tensor


class Workload:
    """Pass on a device; `launch` runs it on any matching `buffers`."""

    def __init__(self, cell: Cell, dtype: torch.dtype, device: str, seed: int = 0) -> None:
        self.cell, self.dtype, self.device, self.batch = cell, dtype, device, pass_of(cell, seed)
        bucket = exact_bucket(self.batch, cell.heads.query // cell.heads.kv)
        numbers = torch.from_numpy(describe(self.batch, bucket)).to(device)
        splits = splits_for(bucket, cell.heads.kv, cell.context + cell.nodes, processors(device))
        views = bucket.views(numbers)
        self.plan = AttentionPlan.of(bucket, views, splits, cell.heads.query, cell.heads.width)

    def buffers(self, seed: int) -> Buffers:
        """Return buffers with random keys, values and queries."""
        c, generator = self.cell, torch.Generator(self.device).manual_seed(seed)

        def numbers(*shape: int) -> torch.Tensor:
            made = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)
            return made.to(self.dtype)

        heads = [c.heads.query, c.heads.kv, c.heads.kv]
        projected = numbers(c.batch * c.nodes, sum(heads), c.heads.width)
        query, key, value = torch.split(projected, heads, 1)
        places = c.batch * blocks_for(c.context + c.nodes) * BLOCK_TOKENS
        keys, values = (numbers(c.heads.kv, places, c.heads.width) for _ in range(2))
        return Buffers(query, key, value, (keys, values), torch.full_like(query, torch.nan).contiguous())

    def launch(self, b: Buffers) -> torch.Tensor:
        """Launch our kernel."""
        return tree_attention(b.query, b.key, b.value, b.cache, self.plan, b.out)

    def contiguous(self, b: Buffers) -> tuple[torch.Tensor, ...]:
        """Return queries, keys, values and mask without pages.

        Queries are [B, H, N, D], keys and values [B, KV heads, context + N, D], the mask is [B, N, context + N].
        """
        c = self.cell
        places = torch.tensor(
            [slots(rows, range(rows.length)) for rows in self.batch.rows], device=self.device
        )
        found = []
        for memory, new in zip(b.cache, (b.key, b.value), strict=True):
            whole = memory.clone()
            whole[:, self.batch.write_slots] = new.transpose(0, 1)
            found.append(whole[:, places].transpose(0, 1).contiguous())
        seen = torch.zeros(c.batch, c.nodes, c.context + c.nodes, dtype=torch.bool)
        for request, rows in enumerate(self.batch.rows):
            for node, (leading, extra) in enumerate(zip(rows.visible, rows.extra, strict=True)):
                seen[request, node, :leading] = True
                seen[request, node, extra] = True
        query = b.query.reshape(c.batch, c.nodes, c.heads.query, c.heads.width).transpose(1, 2)
        return query.contiguous(), *found, seen.to(self.device)


Launcher = Callable[[Buffers], Call]
"""Prepare a launch over buffers; the launch returns attention [T, H, D]."""


def exact(workload: Workload, b: Buffers) -> torch.Tensor:
    """Return every request's attention [T, H, D], in float64 with explicit masks."""
    query, key, value, seen = workload.contiguous(b)
    group = query.shape[1] // key.shape[1]
    key, value = (memory.double().repeat_interleave(group, 1) for memory in (key, value))
    scores = query.double() @ key.transpose(2, 3) / query.shape[-1] ** 0.5
    shares = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    return _in_rows(shares @ value)


def least_bytes(cell: Cell, element_bytes: int) -> int:
    """Return the minimum bytes of a launch.

    A launch reads the context's keys and values once, reads and writes the nodes' keys and values, reads the
    queries, and writes the results.
    """
    entry, rows = 2 * cell.heads.kv * cell.heads.width, cell.batch * cell.nodes
    results = 2 * rows * cell.heads.query * cell.heads.width
    return element_bytes * (cell.batch * cell.context * entry + 2 * rows * entry + results)


def error_of(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ||found - expected|| / ||expected||; infinite if `output` has a NaN."""
    if bool(output.isnan().any()):
        return float("inf")
    return float((output.double() - expected).norm() / expected.norm())


def check(context: GpuContext) -> Iterator[str]:
    """Yield every check's error.

    Raises:
        WrongKernelError: if an error is too large.
    """
    dtype = torch_dtype(context.scale.dtype)
    yield from head(["error", "cache"], "kernel")
    for number, cell in enumerate(context.scale.checks):
        workload = Workload(cell, dtype, context.device, seed=number)
        b = workload.buffers(seed=number)
        expected, cache = exact(workload, b), [memory.clone() for memory in b.cache]
        error = error_of(workload.launch(b), expected)
        for memory, new in zip(cache, (b.key, b.value), strict=True):
            memory[:, workload.batch.write_slots] = new.transpose(0, 1)
        same = all(torch.equal(*pair) for pair in zip(cache, b.cache, strict=True))
        if error > TOLERANCE[dtype] or not same:
            raise WrongKernelError(f"tree attention, {cell}: error {error:.2e}; cache exact: {same}")
        yield line(f"tree attention, {cell}", [f"{error:.1e}", "exact"])
    keys, values = memories = [torch.randn(2, 2, 64, 16, device=context.device).to(dtype) for _ in range(2)]
    expected_memories = [memory.clone() for memory in memories]
    source, target = [9, 3, 20, 21], [2, 3, 4, 5]
    for memory, old in zip(expected_memories, memories, strict=True):
        memory[:, :, target] = old[:, :, source]
    move(keys, values, source, target)
    if not all(torch.equal(*pair) for pair in zip(expected_memories, memories, strict=True)):
        raise WrongKernelError("compaction: the cache differs from torch's result")
    yield line("compaction", ["0", "exact"])


def bandwidth(context: GpuContext) -> Iterator[str]:
    """Measure bytes per second of a large copy, read and written.

    The kernel changes signs, since the driver would run a plain copy in a captured graph, more slowly.
    """
    for share in (1, 2, 4):
        source = torch.ones(context.scale.copy_bytes // share // 4, device=context.device)
        seconds = context.timer.launched([partial(torch.neg, source, out=torch.empty_like(source))])
        context.bandwidth = max(2 * source.nbytes / seconds, context.bandwidth)  # NaN comes last
    yield f"{context.bandwidth / 1e12:.2f} TB/s, bytes read and written (the best of 3 sizes)."


def attention(context: GpuContext) -> Iterator[str]:
    """Yield times of our kernel and of torch's by cell, in microseconds."""
    dtype = torch_dtype(context.scale.dtype)
    yield from head(["bound", "kernel", "of the bound", *LIBRARIES, "best library / kernel"], "us")
    for cell in context.scale.cells:
        if context.left <= 0:
            yield line(str(cell), ["time is up"])
            return
        workload, size = Workload(cell, dtype, context.device), least_bytes(cell, dtype.itemsize)
        count = max(1, min(_MAX_SETS, -(-context.scale.distinct_bytes // size)))
        sets = [workload.buffers(seed) for seed in range(count)]
        ours = context.timer.launched([partial(workload.launch, b) for b in sets])
        expected, bound = workload.launch(sets[0]).double(), size / context.bandwidth
        times = {name: _library(make, workload, sets, expected, context) for name, make in LIBRARIES.items()}
        cells = [f"{1e6 * bound:.1f}", f"{1e6 * ours:.1f}", f"{bound / ours:.2f}"]
        cells += [
            seconds if isinstance(seconds, str) else f"{1e6 * seconds:.1f}" for seconds in times.values()
        ]
        best = min((seconds for seconds in times.values() if isinstance(seconds, float)), default=None)
        yield line(str(cell), [*cells, "" if best is None else f"{best / ours:.2f}x"])
        context.free()


def sdpa(workload: Workload) -> Launcher:
    """Prepare torch's scaled_dot_product_attention; query heads of one KV head become rows."""
    c, (query, _, _, seen) = workload.cell, workload.contiguous(workload.buffers(0))
    group, shape = c.heads.query // c.heads.kv, query.shape
    padded = -(-seen.shape[2] // 16) * 16  # the fast kernels need aligned rows of the mask
    bias = query.new_full((c.batch, 1, group * c.nodes, padded), -torch.inf)[..., : seen.shape[2]]
    bias.masked_fill_(seen.repeat(1, group, 1)[:, None], 0.0)

    def launcher(b: Buffers) -> Call:
        query, key, value, _ = workload.contiguous(b)
        folded = query.reshape(c.batch, c.heads.kv, group * c.nodes, c.heads.width)
        function = torch.nn.functional.scaled_dot_product_attention
        return lambda: _in_rows(function(folded, key, value, attn_mask=bias).reshape(shape))

    return launcher


def flex(workload: Workload) -> Launcher:
    """Prepare torch's flex_attention, compiled for the shape."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    c, (*_, seen) = workload.cell, workload.contiguous(workload.buffers(0))

    def visible(batch: Any, head: Any, row: Any, place: Any) -> Any:
        return seen[batch, row, place]

    mask = create_block_mask(visible, c.batch, None, c.nodes, seen.shape[2], device=workload.device)
    torch._dynamo.reset()  # it compiles for at most eight shapes
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    grouped = c.heads.query != c.heads.kv

    def launcher(b: Buffers) -> Call:
        query, key, value, _ = workload.contiguous(b)
        return lambda: _in_rows(compiled(query, key, value, block_mask=mask, enable_gqa=grouped))

    return launcher


def _in_rows(out: torch.Tensor) -> torch.Tensor:
    """Reshape [B, H, N, D] to [T, H, D]."""
    return out.transpose(1, 2).flatten(0, 1)


LIBRARIES: dict[str, Callable[[Workload], Launcher]] = {"sdpa": sdpa, "flex": flex}


def _library(
    prepare: Callable[[Workload], Launcher],
    workload: Workload,
    sets: Sequence[Buffers],
    expected: torch.Tensor,
    context: GpuContext,
) -> float | str:
    """Return a library's seconds, or the reason for their absence."""
    try:
        launcher = prepare(workload)
        calls = [launcher(b) for b in sets]
        output: Any = calls[0]()
        if error_of(output, expected) > 2 * TOLERANCE[output.dtype]:
            return "differs from ours"
        return context.timer.launched(calls)
    except Exception as error:  # libraries may raise anything
        log.exception("a library failed and is skipped; the others are measured")
        return type(error).__name__
