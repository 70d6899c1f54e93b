"""Grows whole trees of points on a GPU, in one CUDA graph.

The passes of all levels and the work between them run on the device; only the finished trees are copied to the host.

    host      context delta  | describe all levels, copy | wait, build trees
    device    pass           | candidates, extend | pass | candidates, extend | ... | best nodes of each tree

The trees equal those of `specinfer.model.drafting.expansion.ReferenceGrowth`, except for candidates whose scores differ
by rounding. Trees with draws or expansion vectors are left to the reference (`can_grow`): each draw depends on the
draws before it, a loop over single numbers.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.arrays import Array, as_tensor
from specinfer.model.batch import Batch, Segment, flatten
from specinfer.model.drafting.task import NOISY_RIVALS, GrowthShape, GrowthTask
from specinfer.model.gpu.choice import cut_rows
from specinfer.model.gpu.description import MIN_WORDS, WORD_BITS, Bucket, power_above, tile_size
from specinfer.model.gpu.graphs import Graphs
from specinfer.model.gpu.growth_description import (
    GrowthMemory,
    GrowthModel,
    GrowthNumbers,
    GrowthState,
    Levels,
    describe_levels,
)
from specinfer.model.gpu.growth_kernels import extend, favour
from specinfer.tree import TokenTree
from specinfer.tree.builder import point_tree

log = logging.getLogger(__name__)
MIN_WIDTH = 32
"""Minimum width of captured sequences; smaller trees share that sequence."""
MAX_CANDIDATES = 4096
"""Maximum candidates per level and tree, the maximum of one program."""
BLOCK = 1024
"""Columns per program of the kernel `favour`; other sizes were not measured."""

Pass = Callable[[Bucket, dict[str, torch.Tensor]], torch.Tensor]
"""Runs a pass from its description; returns logits [rows, V]."""


def can_grow(tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
    """Return whether the GPU supports these trees; otherwise use `ReferenceGrowth`."""
    levels = max((task.limits.depth for task in tasks), default=0)
    widest = max((task.limits.nodes for task in tasks), default=0)
    return (
        shape.expansion is None
        and not any(shape.draws(task.sampling) for task in tasks)
        and shape.beam * (levels - 1) <= MIN_WORDS * WORD_BITS
        and power_above(shape.beam) * _width(widest) <= MAX_CANDIDATES
    )


def _width(nodes: int) -> int:
    return max(MIN_WIDTH, power_above(nodes))


def launch_options(candidates: int) -> dict[str, int]:
    """Return launch options of the kernel `extend`, for 8 candidates per thread."""
    return {"num_warps": min(max(candidates // 256, 1), 16)}


class GpuGrowth:
    """Grows trees of points with one model.

    Args:
        read: runs a pass over contexts (`Executor.run`).
        score: runs a pass over the nodes of one level.
        graphs: makes a runner of captured sequences from a function.
    """

    def __init__(
        self,
        read: Callable[[Batch], torch.Tensor],
        score: Pass,
        graphs: Callable[[Callable[[Levels], torch.Tensor]], Graphs[Levels]],
        model: GrowthModel,
    ) -> None:
        self._read, self._score, self._model = read, score, model
        self._graphs = graphs(self._sequence)
        self._memory: dict[Levels, GrowthMemory] = {}
        self._token_ids: Array | None = None
        self._vocabulary = torch.zeros(0, dtype=torch.int32)

    def grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: Array) -> list[TokenTree]:
        roots = self._read(flatten([Segment(t.sequence, t.delta, (), (), not t.limits.empty) for t in tasks]))
        growing = [task for task in tasks if not task.limits.empty]
        trees = iter(self._trees(growing, shape, token_ids, roots) if growing else ())
        return [TokenTree.root_only(t.delta[-1]) if t.limits.empty else next(trees) for t in tasks]

    def _trees(
        self,
        tasks: Sequence[GrowthTask],
        shape: GrowthShape,
        token_ids: Array,
        roots: torch.Tensor,
    ) -> list[TokenTree]:
        levels = self._levels(tasks, shape)
        memory = self._memory.get(levels)
        self._know(token_ids)
        if memory is None:
            memory = self._memory[levels] = GrowthMemory.of(levels, self._model)
            self._load(memory, tasks, shape, levels, roots)
            self._graphs.capture([levels])
            log.info("captured a CUDA graph that grows trees of %s", levels)
        self._load(memory, tasks, shape, levels, roots)
        tables = self._graphs.run(levels)[: len(tasks)].cpu().numpy()
        return [_tree(rows, task) for rows, task in zip(tables, tasks, strict=True)]

    def _know(self, token_ids: Array) -> None:
        """Store the draft vocabulary on the device; if new, drop captured sequences."""
        if self._token_ids is not token_ids:
            self._token_ids = token_ids
            self._vocabulary = as_tensor(token_ids).to(self._model.device, torch.int32)
            self._memory.clear()

    def _levels(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> Levels:
        requests, rows = power_above(len(tasks)), power_above(len(tasks)) * shape.beam
        group = self._model.group
        return Levels(
            levels=max(task.limits.depth for task in tasks),
            beam=shape.beam,
            width=_width(max(task.limits.nodes for task in tasks)),
            cuts=any(t.sampling.top_k or t.sampling.top_p < 1 for t in tasks if not t.sampling.greedy),
            bucket=Bucket(requests, rows, rows, MIN_WORDS, tile_size(rows, requests, group), group),
        )

    def _load(
        self,
        memory: GrowthMemory,
        tasks: Sequence[GrowthTask],
        shape: GrowthShape,
        levels: Levels,
        roots: torch.Tensor,
    ) -> None:
        numbers: GrowthNumbers = describe_levels(tasks, shape, levels, self._model.vocabulary_size)
        memory.passes.load(numbers.passes)
        memory.parameters.load(numbers.parameters)
        memory.roots[: len(tasks)].copy_(roots)

    def _sequence(self, levels: Levels) -> torch.Tensor:
        """Grow trees from the inputs in memory; return `GrowthState.best_nodes`."""
        memory = self._memory[levels]
        state = GrowthState.empty(levels, self._model.device)
        logits, masks = memory.roots, state.tokens  # the root has no mask: the kernel does not read `masks`
        passes = levels.views(memory.passes.numbers)
        for level in range(levels.levels):
            last = level + 1 == levels.levels
            sections = passes[level] if not last else {}
            self._extend(levels, memory, state, level, logits, masks, sections)
            if not last:
                logits, masks = self._score(levels.bucket, sections), sections["masks"]
        return state.best_nodes(levels.width)

    def _extend(
        self,
        levels: Levels,
        memory: GrowthMemory,
        state: GrowthState,
        level: int,
        logits: torch.Tensor,
        masks: torch.Tensor,
        sections: dict[str, torch.Tensor],
    ) -> None:
        parameters = levels.parameters(memory.parameters.numbers)
        requests = levels.bucket.requests
        front = len(logits) // requests
        scores, ids = self._candidates(levels, parameters, level, logits)
        extend[requests,](
            *(scores, ids, self._vocabulary),
            *(parameters[name] for name in ("depths", "widths", "least")),
            *(state.paths, state.scores, state.tokens, state.parents),
            *(state.frontier_paths, state.frontier_cells),
            *(masks, sections.get("masks", masks), sections.get("token_ids", masks)),
            *(level, requests, front, scores.shape[1], levels.cells),
            BEAM=levels.beam,
            WIDTH=levels.width,
            FRONT=power_above(front),
            WORDS=levels.bucket.words,
            LAST=not sections,
            **launch_options(power_above(front) * levels.width),
        )

    def _candidates(
        self, levels: Levels, parameters: dict[str, torch.Tensor], level: int, logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and draft tokens [rows, n] of each row's best candidates."""
        rows, size = logits.shape
        rows_of_request = rows // levels.bucket.requests
        by_row = {
            name: parameters[name][:, None].expand(-1, rows_of_request).reshape(-1, 1) for name in _OF_ROWS
        }
        if levels.cuts:
            logits = cut_rows(logits, by_row["temperatures"], by_row["top_k"].long(), by_row["top_p"])
        favours = torch.empty_like(logits)
        favour[rows, -(-size // BLOCK)](
            *(logits, logits.amax(-1), parameters["temperatures"], parameters["greedy"]),
            *(parameters["keys"][level], self._vocabulary, favours, size, rows_of_request),
            BLOCK=BLOCK,
        )
        best = favours.topk(min(max(levels.width, NOISY_RIVALS), size), dim=-1)
        lead = (best.values - best.values[:, :1]) / by_row["score_temperatures"]
        noisy = lead.exp() / lead[:, :NOISY_RIVALS].exp().sum(-1, keepdim=True)
        certain = (best.values - favours.logsumexp(-1, keepdim=True)).exp()
        return torch.where(by_row["greedy"] != 0, certain, noisy.float()), best.indices


_OF_ROWS = ("temperatures", "score_temperatures", "greedy", "top_k", "top_p")


def _tree(rows: NDArray[np.float64], task: GrowthTask) -> TokenTree:
    """Return a tree from its best nodes, rows of `GrowthState.best_nodes`."""
    kept = [row for row in rows[: task.limits.nodes].tolist() if row[0] > 0]
    kept.sort(key=lambda row: row[1])
    place = {-1: 0} | {int(row[1]): at for at, row in enumerate(kept, 1)}
    return point_tree(
        [task.delta[-1], *(int(row[3]) for row in kept)],
        [-1, *(place[int(row[2])] for row in kept)],
        [1.0, *(row[4] for row in kept)],
        range(1, len(kept) + 1),
    )
