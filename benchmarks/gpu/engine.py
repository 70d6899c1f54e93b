"""Measure passes by nodes, and steps of the verifier's engine."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.attention import bandwidth
from benchmarks.gpu.run import Rows, SectionContext, give_back_memory
from benchmarks.gpu.scale import AIM_NODES, ModelShape, RandomWeights, random_runner
from benchmarks.gpu.workload import random_paths
from benchmarks.synthetic import RULE_NAME, mark, measured, synthetic_rules
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.options import DTYPES
from specinfer.model.runner import ModelRunner
from specinfer.sampling import GREEDY
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob

_LOADING_S = 40
"""Maximum seconds to load a shape and capture its passes."""
_CHUNK = 512
"""Context tokens read per pass."""


def measure_passes(context: SectionContext, rows: Rows) -> None:
    """Measure a pass per shape, batch and nodes (root included)."""
    scale = context.scale
    for shape in scale.shapes:
        if context.budget.left < _LOADING_S:
            rows.append({"shape": shape.name, "skipped": f"less than {_LOADING_S} s left"})
            continue
        context.say(f"passes: {shape.name}, loading and capturing")
        room = max(scale.batches) * (scale.context + max(scale.nodes) + 2 * _CHUNK)
        runner = random_runner(shape, scale.dtype, context.device, scale.positions, room)
        _measure_shape(shape, runner, context, rows)
        del runner
        give_back_memory(context.device)


def _measure_shape(shape: ModelShape, runner: ModelRunner, context: SectionContext, rows: Rows) -> None:
    scale = context.scale
    for batch in scale.batches:
        sequences = [read_context(runner, scale.context, seed) for seed in range(batch)]
        one: dict[str, Any] | None = None
        for nodes in scale.nodes:
            if context.budget.left <= 0:
                rows.append({"shape": shape.name, "batch": batch, "nodes": nodes, "skipped": "time is up"})
                continue
            context.say(f"passes: {shape.name}, batch {batch}, {nodes} nodes")
            row = measure_pass(shape, runner, sequences, nodes, context)
            one = one or row
            rows.append(row | {"over_one_node": row["pass_s"] / one["pass_s"]})
        for sequence in sequences:
            runner.cache.release(sequence)


def measure_executors(context: SectionContext, rows: Rows) -> None:
    """Measure passes of the torch executor by shape and nodes."""
    scale = context.scale
    for shape in dict.fromkeys((scale.shapes[0], scale.shapes[-1])):
        if context.budget.left <= 0:
            return
        context.say(f"executors: {shape.name}, torch")
        room = scale.context + max(scale.nodes) + 2 * _CHUNK
        runner = random_runner(shape, scale.dtype, context.device, scale.positions, room, "torch")
        sequences = [read_context(runner, scale.context, 0)]
        for nodes in (1, tree_nodes(context)):
            row = measure_pass(shape, runner, sequences, nodes, context)
            ours = pass_seconds(context, shape.name, 1, nodes, "pass_s")
            key = {"shape": shape.name, "batch": 1, "nodes": nodes}
            rows.append(key | {"torch_s": row["pass_s"], "gpu_s": ours})
        del runner, sequences
        give_back_memory(context.device)


def read_context(runner: ModelRunner, length: int, seed: int) -> KVSequence:
    """Return a cached sequence of `length` random tokens."""
    sequence, rng = runner.open(), np.random.default_rng(seed)
    tokens = rng.integers(1, runner.config.vocab_size, length).tolist()
    for start in range(0, length, _CHUNK):
        runner.forward([Segment(sequence, tokens[start : start + _CHUNK])])
    return sequence


def measure_pass(
    shape: ModelShape,
    runner: ModelRunner,
    sequences: Sequence[KVSequence],
    nodes: int,
    context: SectionContext,
) -> dict[str, Any]:
    """Return times of a pass.

    `pass_s`: until the logits are ready; `queued_s`: of passes queued without waiting for results;
    `plain_bound_s`: reading all weights and the contexts' keys and values at the bandwidth of a copy.
    """
    trees = [random_tree(runner.config.vocab_size, nodes, seed) for seed in range(len(sequences))]

    def call() -> None:
        segments = [Segment(s, (), *tree) for s, tree in zip(sequences, trees, strict=True)]
        runner.forward(segments)
        for sequence in sequences:
            runner.cache.commit(sequence, ())

    c = runner.config
    dtype = DTYPES[context.scale.dtype]
    weights = RandomWeights(shape, dtype, context.device).pass_bytes
    entries = sum(sequence.cached for sequence in sequences) * c.layers * 2 * c.kv_heads * c.head_dim
    return {
        "shape": shape.name,
        "batch": len(sequences),
        "nodes": nodes,
        "pass_s": context.timer.waited(call),
        "queued_s": context.timer.queued(call),
        "weight_bytes": weights,
        "plain_bound_s": (weights + entries * dtype.itemsize) / bandwidth(context),
    }


def random_tree(vocabulary: int, nodes: int, seed: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents of a random tree.

    Its first node follows the context.
    """
    rng = np.random.default_rng(seed)
    parents = [path[-2] if len(path) > 1 else -1 for path in random_paths(rng, nodes)]
    return rng.integers(1, vocabulary, nodes).tolist(), parents


HISTOGRAM = "greedy, 32 nodes"
_WARM_UP = 2
"""Number of untimed steps; the first step reads the contexts."""
_LONGEST_PATH = 10
"""Approximate maximum of tokens committed per step."""


def measure_engine(context: SectionContext, rows: Rows) -> None:
    """Measure steps and the device's idle share, plain and with trees."""
    scale, shape = context.scale, context.scale.shapes[0]
    histogram = measured(HISTOGRAM)
    context.say(f"engine: {shape.name}, loading and capturing")
    room = max(scale.batches) * (
        scale.context + (_WARM_UP + scale.steps) * _LONGEST_PATH + 2 * max(scale.nodes)
    )
    runner = random_runner(shape, scale.dtype, context.device, scale.positions, room)
    limits = EngineLimits(max_step_tokens=max(scale.batches) * (scale.context + tree_nodes(context)))
    with synthetic_rules(histogram):
        engine = VerifierEngine(runner, RULE_NAME, limits)
        for batch in scale.batches:
            for nodes in (1, tree_nodes(context)):
                if context.budget.left <= 0:
                    return
                context.say(f"engine: {shape.name}, batch {batch}, {nodes} nodes")
                rows.append(
                    _steps(engine, shape, batch, nodes, context) | {"synthetic_acceptance": mark(histogram)}
                )


def tree_nodes(context: SectionContext) -> int:
    """Return the number of nodes of a tree, root included."""
    return min(AIM_NODES, max(context.scale.nodes))


def _steps(
    engine: VerifierEngine, shape: ModelShape, batch: int, nodes: int, context: SectionContext
) -> dict[str, Any]:
    rng, vocabulary = np.random.default_rng(batch), engine.runner.config.vocab_size
    contexts = [rng.integers(1, vocabulary, context.scale.context).tolist() for _ in range(batch)]
    cached_lens, times, tokens = [0] * batch, list[float](), 0
    for step in range(_WARM_UP + context.scale.steps):
        jobs = [
            VerifyJob(
                f"r{i}",
                cached_lens[i],
                contexts[i][cached_lens[i] :],
                _tree(contexts[i][-1], nodes, vocabulary, step),
                GREEDY,
            )
            for i in range(batch)
        ]
        started = time.perf_counter()
        outcomes = engine.verify(jobs)
        engine.settle()
        if step >= _WARM_UP:
            times.append(time.perf_counter() - started)
        for i, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
            assert outcome.verdict is not None, outcome.message
            assert job.tree is not None
            accepted = [int(job.tree.token_ids[node]) for node in outcome.verdict.accepted]
            contexts[i] += [*accepted, outcome.verdict.bonus]
            cached_lens[i] = outcome.cached_len
            tokens += (1 + len(accepted)) * (step >= _WARM_UP)
    engine.release([f"r{i}" for i in range(batch)])
    device_s = pass_seconds(context, shape.name, batch, nodes, "queued_s")
    step_s = median(times)
    row = {"shape": shape.name, "batch": batch, "nodes": nodes, "step_s": step_s}
    row |= {"tokens_per_step": tokens / (batch * context.scale.steps), "tokens_per_s": tokens / sum(times)}
    return row | {"device_s": device_s, "beside_device": share_beside(device_s, step_s)}


def _tree(root: int, nodes: int, vocabulary: int, seed: int) -> TokenTree:
    builder = TreeBuilder(root)
    tokens, parents = random_tree(vocabulary, nodes, seed)
    made = {0: 0}
    for parent in range(nodes):
        children = [node for node in range(1, nodes) if parents[node] == parent]
        guesses = [tokens[node] for node in children]
        grown = builder.propose_points(made[parent], guesses, [1 / nodes] * len(guesses))
        made.update(zip(children, grown, strict=True))
    return builder.build()


def pass_seconds(context: SectionContext, shape: str, batch: int, nodes: int, of: str) -> float | None:
    """Return seconds `of` of a measured pass; None if not measured."""
    key = {"shape": shape, "batch": batch, "nodes": nodes}
    passes: Sequence[dict[str, Any]] = context.results.get("passes", [])
    return next((row[of] for row in passes if key.items() <= row.items() and of in row), None)


def share_beside(device_s: float | None, step_s: float) -> float | None:
    """Return the share of a step's time outside the device's pass."""
    return None if device_s is None else 1 - device_s / step_s


DEPTH = 8
_CALLS = 256
"""Context tokens reserved for timed calls; each call adds a token."""
Grow = Callable[[Sequence[GrowthTask]], list[TokenTree]]


def measure_drafting(context: SectionContext, rows: Rows) -> None:
    """Measure seconds of greedy best-first trees, captured and level by level."""
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
