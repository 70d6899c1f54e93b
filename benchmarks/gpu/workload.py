"""One launch of attention: random trees behind contexts in a paged cache, and the bytes it cannot avoid."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu.scale import Cell
from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, blocks_for
from specinfer.model.gpu.attention import AttentionPlan, splits_for, tree_attention
from specinfer.model.gpu.description import describe, exact_bucket
from specinfer.model.gpu.launch import processors

Tensors = tuple[torch.Tensor, ...]


def random_paths(rng: np.random.Generator, nodes: int) -> list[list[int]]:
    """Return for every node of a random tree the nodes from the root, node 0, down to it."""
    paths = [[0]]
    for node in range(1, nodes):
        paths.append([*paths[int(rng.integers(0, node))], node])
    return paths


def pass_of(cell: Cell, seed: int) -> Batch:
    """A pass of `cell.batch` requests whose blocks lie mixed up; trees differ, contexts are equally long."""
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
    """Where positions of a request lie in the cache."""
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
    """[T, H, D], poisoned."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A pass on a device, ready to be launched on any buffers of its sizes."""

    cell: Cell
    batch: Batch
    plan: AttentionPlan
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, cell: Cell, dtype: torch.dtype, device: str, seed: int = 0) -> "Workload":
        """The pass of a cell, as the gpu executor would describe and split it."""
        batch = pass_of(cell, seed)
        bucket = exact_bucket(batch, cell.heads.query // cell.heads.kv)
        numbers = torch.from_numpy(describe(batch, bucket)).to(device)
        splits = splits_for(bucket, cell.heads.kv, cell.context + cell.nodes, processors(device))
        return cls(cell, batch, AttentionPlan(bucket, bucket.views(numbers), splits), dtype, device)

    def buffers(self, seed: int) -> Buffers:
        """Random keys, values and queries."""
        c, generator = self.cell, torch.Generator(self.device).manual_seed(seed)
        places = c.batch * blocks_for(c.context + c.nodes) * BLOCK_TOKENS

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(
                self.dtype
            )

        rows = c.batch * c.nodes
        projected = numbers(rows, c.heads.query + 2 * c.heads.kv, c.heads.width)
        query, key, value = projected.split([c.heads.query, c.heads.kv, c.heads.kv], 1)
        keys, values = (numbers(c.heads.kv, places, c.heads.width) for _ in range(2))
        return Buffers(query, key, value, (keys, values), torch.full_like(query, torch.nan).contiguous())

    def launch(self, b: Buffers) -> torch.Tensor:
        """Our kernel."""
        return tree_attention(b.query, b.key, b.value, b.cache, self.plan, b.out)


def least_bytes(cell: Cell, element_bytes: int) -> int:
    """Bytes that a launch moves at least: the context's keys and values read once; those of the nodes read
    and written; queries read, results written."""
    entry = 2 * cell.heads.kv * cell.heads.width
    rows = cell.batch * cell.nodes
    context = cell.batch * cell.context * entry
    return element_bytes * (context + 2 * rows * entry + 2 * rows * cell.heads.query * cell.heads.width)
