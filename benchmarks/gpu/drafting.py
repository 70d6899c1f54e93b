"""How long a small model takes to grow trees: in one captured sequence, and level by level from the host."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from benchmarks.gpu.engine import tree_nodes
from benchmarks.gpu.passes import read_context
from benchmarks.gpu.section import Rows, SectionContext
from benchmarks.gpu.shapes import random_runner
from specinfer.model.cache.kv_cache import KVSequence
from specinfer.model.drafting.expansion import GrowthShape, GrowthTask, ReferenceGrowth
from specinfer.model.runner import ModelRunner
from specinfer.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits

DEPTH = 8
_CALLS = 256
"""Context tokens for which there must be room: each timed call adds one."""
Grow = Callable[[Sequence[GrowthTask]], list[TokenTree]]


def measure_drafting(context: SectionContext, rows: Rows) -> None:
    """Per batch: seconds of a greedy best-first tree per request, either way."""
    scale, shape = context.scale, GrowthShape()
    limits = TreeLimits(tree_nodes(context) - 1, DEPTH)
    context.say(f"drafting: {scale.drafter.name}, loading and capturing")
    room = max(scale.batches) * (scale.context + _CALLS + 2 * shape.scored_nodes(limits))
    runner = random_runner(scale.drafter, scale.dtype, context.device, scale.positions, room)
    for batch in scale.batches:
        if context.budget.left <= 0:
            return
        context.say(f"drafting: {scale.drafter.name}, batch {batch}")
        sequences = [read_context(runner, scale.context, seed) for seed in range(batch)]
        seconds = {
            name: context.timer.waited(partial(_grow, runner, sequences, limits, shape, grow))
            for name, grow in _ways(runner, shape).items()
        }
        rows.append(
            {"shape": scale.drafter.name, "batch": batch, "nodes": limits.nodes, "depth": DEPTH} | seconds
        )
        for sequence in sequences:
            runner.cache.release(sequence)


def _ways(runner: ModelRunner, shape: GrowthShape) -> dict[str, Grow]:
    token_ids = torch.arange(runner.config.vocab_size, dtype=torch.int32)
    reference = ReferenceGrowth(runner.forward, shape, token_ids)

    def by_level(tasks: Sequence[GrowthTask]) -> list[TokenTree]:
        try:
            return reference.grow(tasks)
        finally:
            for task in tasks:
                runner.cache.commit(task.sequence, ())

    return {"captured_s": lambda tasks: runner.grow(tasks, shape, token_ids), "by_level_s": by_level}


def _grow(
    runner: ModelRunner, sequences: Sequence[KVSequence], limits: TreeLimits, shape: GrowthShape, grow: Grow
) -> None:
    for sequence in sequences:
        runner.cache.reserve(sequence, 1 + shape.scored_nodes(limits))
    trees = grow([GrowthTask(sequence, [1], limits, GREEDY) for sequence in sequences])
    assert all(len(tree) > 1 for tree in trees)
