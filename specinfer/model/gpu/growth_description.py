"""Describes the passes of all levels of a growth in one array.

The array is copied to the device once: slots, positions and visible context of all nodes are known in advance. Node i
of level d is tentative node (d - 1) * beam + i of its request. The device writes tokens and masks between the passes
(`specinfer.model.gpu.growth_kernels`). Nothing in this file runs on a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.cache.sequence import BLOCK_TOKENS, blocks_for
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.gpu.choice import NO_CUT
from specinfer.model.gpu.description import Bucket, Int32
from specinfer.model.gpu.launch import Inputs
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE
from specinfer.model.sampling.noise import noise_keys

_DOUBLES = ("temperatures", "score_temperatures", "least", "top_p")
_WHOLE = ("depths", "widths", "greedy", "top_k")


@dataclass(frozen=True, slots=True)
class Levels:
    """Sizes of trees; growths of equal sizes use the same captured sequence."""

    levels: int
    beam: int
    width: int
    """Maximum nodes of a tree, and children of a node; 2^n."""
    cuts: bool
    """True if a request uses top-k or top-p."""
    bucket: Bucket
    """Sizes of each level's pass, with `beam` rows per request."""

    @property
    def cells(self) -> int:
        """Maximum number of candidates of one tree, over all levels."""
        return self.levels * self.beam * self.width

    @property
    def pass_numbers(self) -> int:
        """Length of all passes' descriptions without the block tables, in int32 numbers."""
        return (self.levels - 1) * self.bucket.starts["blocks"]

    @property
    def parameter_numbers(self) -> int:
        """Length of the requests' parameters, in int32 numbers."""
        tasks = self.bucket.requests
        return 2 * tasks * (self.levels + len(_DOUBLES)) + tasks * len(_WHOLE)

    def views(self, numbers: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Return the sections of each level's pass; all share the block tables."""
        size, blocks = self.bucket.starts["blocks"], numbers[self.pass_numbers :]
        return [
            self.bucket.views(numbers[level * size : (level + 1) * size]) | {"blocks": blocks}
            for level in range(self.levels - 1)
        ]

    def parameters(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of the parameters, each [tasks]; noise keys [levels, tasks] int64."""
        tasks = self.bucket.requests
        wide = 2 * tasks * (self.levels + len(_DOUBLES))
        long = numbers[:wide].view(torch.int64).view(-1, tasks)
        doubles = zip(_DOUBLES, long[self.levels :].view(torch.float64), strict=True)
        whole = zip(_WHOLE, numbers[wide : wide + tasks * len(_WHOLE)].view(-1, tasks), strict=True)
        return {"keys": long[: self.levels], **dict(doubles), **dict(whole)}


@dataclass(frozen=True, slots=True)
class GrowthNumbers:
    passes: Int32
    parameters: Int32


def describe_levels(
    tasks: Sequence[GrowthTask], shape: GrowthShape, levels: Levels, vocabulary_size: int
) -> GrowthNumbers:
    """Return descriptions of the passes, and parameters of the requests."""
    return GrowthNumbers(_passes(tasks, levels), _parameters(tasks, shape, levels, vocabulary_size))


def _passes(tasks: Sequence[GrowthTask], levels: Levels) -> Int32:
    bucket, beam = levels.bucket, levels.beam
    blocks = np.array([block for task in tasks for block in task.sequence.blocks], np.int32)
    starts = np.cumsum([0, *(len(task.sequence.blocks) for task in tasks)])[:-1]
    context = np.array([task.sequence.cached + len(task.delta) for task in tasks])
    shift = np.array([task.sequence.shift for task in tasks])
    level = np.arange(1, levels.levels)[:, None]
    active = level < np.array([task.limits.depth for task in tasks])  # [levels - 1, tasks]
    cached = context + (level - 1) * beam
    place = np.where(active[..., None], cached[..., None] + np.arange(beam), 0)
    slots = blocks[starts[:, None] + place // BLOCK_TOKENS] * BLOCK_TOKENS + place % BLOCK_TOKENS
    first = np.arange(0, beam, bucket.tile_rows)
    tile_rows = np.minimum(beam - first, bucket.tile_rows)
    rows = np.arange(len(tasks)) * beam
    tiles = len(level), len(tasks) * len(first)
    sections: dict[str, NDArray[np.int64]] = {
        "positions": np.where(active, context + shift + level - 1, 0).repeat(beam, 1),
        "write_slots": slots.reshape(len(level), len(tasks) * beam),
        "visible": np.broadcast_to(context, active.shape).repeat(beam, 1),
        "held": cached,
        "context": np.broadcast_to(context, active.shape),
        "row_start": np.broadcast_to(rows, active.shape),
        "block_start": np.broadcast_to(starts, active.shape),
        "tile_request": np.broadcast_to(np.arange(len(tasks)), active.shape).repeat(len(first), 1),
        "tile_start": np.broadcast_to((rows[:, None] + first).ravel(), tiles),
        "tile_rows": np.where(active[..., None], tile_rows, 0).reshape(tiles),
        "logit_rows": np.broadcast_to(np.arange(bucket.rows), (len(level), bucket.rows)),
    }
    return np.concatenate([_laid_out(sections, bucket, len(level)), blocks])


def _laid_out(sections: dict[str, NDArray[np.int64]], bucket: Bucket, levels: int) -> Int32:
    starts = bucket.starts
    numbers = np.zeros((levels, starts["blocks"]), np.int32)
    for name, values in sections.items():
        numbers[:, starts[name] : starts[name] + values.shape[1]] = values
    return numbers.ravel()


def _parameters(
    tasks: Sequence[GrowthTask], shape: GrowthShape, levels: Levels, vocabulary_size: int
) -> Int32:
    count = levels.bucket.requests
    keys = np.zeros((levels.levels, count), np.uint64)
    doubles, whole = np.ones((len(_DOUBLES), count)), np.zeros((len(_WHOLE), count), np.int32)
    for at, task in enumerate(tasks):
        first = task.sequence.length + len(task.delta)
        keys[:, at] = noise_keys(task.sampling.seed, np.arange(first, first + levels.levels))
        doubles[:, at], whole[:, at] = _doubles(task, shape), _whole(task, vocabulary_size)
    return np.concatenate(
        [keys.ravel().view(np.int32), doubles.ravel().view(np.int32), whole.ravel()], dtype=np.int32
    )


def _doubles(task: GrowthTask, shape: GrowthShape) -> tuple[float, ...]:
    sampling, scored = task.sampling, task.score_temperature
    temperature = scored if sampling.greedy else max(sampling.temperature, SMALLEST_TEMPERATURE)
    top_p = NO_CUT if sampling.greedy or sampling.top_p >= 1 else sampling.top_p
    return temperature, scored, shape.followed(task.limits), top_p


def _whole(task: GrowthTask, vocabulary_size: int) -> tuple[int, ...]:
    sampling, limits = task.sampling, task.limits
    top_k = vocabulary_size if sampling.greedy or not sampling.top_k else min(sampling.top_k, vocabulary_size)
    width = limits.nodes if limits.width is None else min(limits.nodes, limits.width)
    return limits.depth, width, int(sampling.greedy), top_k


@dataclass(frozen=True, slots=True)
class GrowthModel:
    device: str
    group: int
    """Number of query heads per key head."""
    vocabulary_size: int
    max_positions: int


@dataclass(frozen=True, slots=True)
class GrowthMemory:
    """Inputs of a captured sequence; their addresses do not change."""

    passes: Inputs
    parameters: Inputs
    roots: torch.Tensor
    """[tasks, V] logits after each context."""

    @classmethod
    def of(cls, levels: Levels, model: GrowthModel) -> "GrowthMemory":
        """Allocate inputs for any growth of these sizes."""
        requests = levels.bucket.requests
        nodes = levels.levels * levels.beam  # all positions of the context, and slots of all nodes
        blocks = requests * blocks_for(model.max_positions + nodes)
        return cls(
            Inputs(levels.pass_numbers + blocks, model.device),
            Inputs(levels.parameter_numbers, model.device),
            torch.zeros(requests, model.vocabulary_size, device=model.device),
        )


@dataclass(frozen=True, slots=True)
class GrowthState:
    """Trees under construction; `growth_kernels.extend` describes the tensors."""

    paths: torch.Tensor
    scores: torch.Tensor
    tokens: torch.Tensor
    parents: torch.Tensor
    frontier_paths: torch.Tensor
    frontier_cells: torch.Tensor

    @classmethod
    def empty(cls, levels: Levels, device: str) -> "GrowthState":
        requests, cells = levels.bucket.requests, levels.cells
        frontier = torch.zeros(levels.levels + 1, requests, levels.beam, dtype=torch.float64, device=device)
        frontier[0, :, 0] = 1.0
        floats = torch.zeros(requests, cells, dtype=torch.float64, device=device)
        whole = torch.zeros(requests, cells, dtype=torch.int32, device=device)
        return cls(
            paths=floats,
            scores=floats.float(),
            tokens=whole,
            parents=torch.zeros_like(whole),
            frontier_paths=frontier,
            frontier_cells=torch.full_like(frontier, -1, dtype=torch.int32),
        )

    def best_nodes(self, count: int) -> torch.Tensor:
        """Return the best nodes, [tasks, count, 5] float64.

        Columns: path probability, cell, parent's cell, token, score.
        """
        order = self.paths.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        columns = [table.gather(1, order).double() for table in (self.parents, self.tokens, self.scores)]
        return torch.stack([self.paths.gather(1, order), order.double(), *columns], dim=-1)
