"""Attention launches on random trees, with their minimum bytes and a check.

The check against float64 uses output buffers filled with NaN, and runs before any timing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.run import SectionContext
from benchmarks.gpu.scale import Cell
from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, blocks_for
from specinfer.model.gpu.attention import AttentionPlan, splits_for, tree_attention
from specinfer.model.gpu.description import describe, exact_bucket
from specinfer.model.gpu.launch import processors
from specinfer.model.gpu.layer_kernels import move
from specinfer.model.options import DTYPES

Tensors = tuple[torch.Tensor, ...]


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
    """Buffers that one launch reads and writes."""

    query: torch.Tensor
    """[T, H, D]"""
    key: torch.Tensor
    value: torch.Tensor
    cache: tuple[torch.Tensor, torch.Tensor]
    """[KV heads, slots, D]"""
    out: torch.Tensor
    """[T, H, D], filled with NaN before the launch."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Pass on a device; `launch` runs it on any matching `buffers`."""

    cell: Cell
    batch: Batch
    plan: AttentionPlan
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, cell: Cell, dtype: torch.dtype, device: str, seed: int = 0) -> "Workload":
        """Return a cell's pass, with the executor's bucket, row numbers and splits."""
        batch = pass_of(cell, seed)
        bucket = exact_bucket(batch, cell.heads.query // cell.heads.kv)
        numbers = torch.from_numpy(describe(batch, bucket)).to(device)
        splits = splits_for(bucket, cell.heads.kv, cell.context + cell.nodes, processors(device))
        plan = AttentionPlan.of(bucket, bucket.views(numbers), splits, cell.heads.query, cell.heads.width)
        return cls(cell, batch, plan, dtype, device)

    def buffers(self, seed: int) -> Buffers:
        """Return buffers with random keys, values and queries."""
        c, generator = self.cell, torch.Generator(self.device).manual_seed(seed)
        places = c.batch * blocks_for(c.context + c.nodes) * BLOCK_TOKENS

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(
                self.dtype
            )

        rows = c.batch * c.nodes
        projected = numbers(rows, c.heads.query + 2 * c.heads.kv, c.heads.width)
        query, key, value = torch.split(projected, [c.heads.query, c.heads.kv, c.heads.kv], 1)
        keys, values = (numbers(c.heads.kv, places, c.heads.width) for _ in range(2))
        return Buffers(query, key, value, (keys, values), torch.full_like(query, torch.nan).contiguous())

    def launch(self, b: Buffers) -> torch.Tensor:
        """Launch our kernel."""
        return tree_attention(b.query, b.key, b.value, b.cache, self.plan, b.out)


def least_bytes(cell: Cell, element_bytes: int) -> int:
    """Return the minimum bytes of a launch.

    A launch reads the context's keys and values once, reads and writes the nodes' keys and values, reads the
    queries, and writes the results.
    """
    entry = 2 * cell.heads.kv * cell.heads.width
    rows = cell.batch * cell.nodes
    context = cell.batch * cell.context * entry
    return element_bytes * (context + 2 * rows * entry + 2 * rows * cell.heads.query * cell.heads.width)


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
"""Maximum ||found - exact|| / ||exact||; bfloat16 operands give 1e-3 to 1e-2."""


class WrongKernelError(RuntimeError):
    """A kernel's results differ from the reference."""


def exact(workload: Workload, b: Buffers) -> torch.Tensor:
    """Return every request's attention [T, H, D], in float64 with explicit masks."""
    batch, output = workload.batch, torch.empty(b.query.shape, dtype=torch.float64, device=b.query.device)
    group = b.query.shape[1] // b.key.shape[1]
    keys, values = (memory.double() for memory in b.cache)
    places = torch.tensor(batch.write_slots, device=b.query.device)
    keys[:, places], values[:, places] = (new.double().transpose(0, 1) for new in (b.key, b.value))
    for rows in batch.rows:
        k, v = (
            memory[:, slots(rows, range(rows.length))].repeat_interleave(group, 0)
            for memory in (keys, values)
        )
        q = b.query[rows.start : rows.stop].double().transpose(0, 1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        shares = scores.masked_fill(
            ~visible(workload, rows.start // workload.cell.nodes), -torch.inf
        ).softmax(-1)
        output[rows.start : rows.stop] = (shares @ v).transpose(0, 1)
    return output


def visible(workload: Workload, request: int) -> torch.Tensor:
    """Return a request's mask [nodes, context + nodes]."""
    rows = workload.batch.rows[request]
    seen = torch.zeros(len(rows.visible), rows.length, dtype=torch.bool)
    for row, (leading, extra) in enumerate(zip(rows.visible, rows.extra, strict=True)):
        seen[row, :leading] = True
        seen[row, extra] = True
    return seen.to(workload.device)


def error_of(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ||found - expected|| / ||expected||; infinite if `output` has a NaN."""
    if bool(output.isnan().any()):
        return float("inf")
    return float((output.double() - expected).norm() / expected.norm())


def check_kernels(context: SectionContext, rows: list[dict[str, Any]]) -> None:
    """Append every check's error to `rows`.

    Raises:
        WrongKernelError: if an error is too large. Nothing is timed then.
    """
    dtype = DTYPES[context.scale.dtype]
    for number, cell in enumerate(context.scale.checks):
        context.say(f"checking {cell}")
        workload = Workload.of(cell, dtype, context.device, seed=number)
        buffers = workload.buffers(seed=number)
        expected = exact(workload, buffers)
        before = [memory.clone() for memory in buffers.cache]
        error = error_of(workload.launch(buffers), expected)
        for memory, new in zip(before, (buffers.key, buffers.value), strict=True):
            memory[:, workload.batch.write_slots] = new.transpose(0, 1)
        same = all(torch.equal(*pair) for pair in zip(before, buffers.cache, strict=True))
        rows.append({"kernel": "tree attention", "cell": repr(cell), "error": error, "cache_exact": same})
        if error > TOLERANCE[dtype] or not same:
            raise WrongKernelError(
                f"tree attention, {cell}: error {error:.2e}, at most {TOLERANCE[dtype]}; cache exact: {same}"
            )
    rows.append(
        {"kernel": "compaction", "cell": "", "error": _check_compaction(context, dtype), "cache_exact": True}
    )


def _check_compaction(context: SectionContext, dtype: torch.dtype) -> float:
    keys, values = (torch.randn(2, 2, 64, 16, device=context.device).to(dtype) for _ in range(2))
    source, target = [9, 3, 20, 21], [2, 3, 4, 5]
    expected = [memory.clone() for memory in (keys, values)]
    for memory, old in zip(expected, (keys, values), strict=True):
        memory[:, :, target] = old[:, :, source]
    move(keys, values, source, target)
    if not all(torch.equal(*pair) for pair in zip(expected, (keys, values), strict=True)):
        raise WrongKernelError("compaction: the cache must equal torch's result, but differs")
    return 0.0
