"""Measure passes of the verifier by their nodes, on shapes with random weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.attention import bandwidth
from benchmarks.gpu.scale import ModelShape
from benchmarks.gpu.section import Rows, SectionContext, give_back_memory
from benchmarks.gpu.shapes import RandomWeights, random_runner
from benchmarks.gpu.workload import random_paths
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.options import DTYPES
from specinfer.model.runner import ModelRunner

_LOADING_S = 40
"""Seconds that loading a shape and capturing its passes may take. Not yet measured on a GPU."""
_CHUNK = 512
"""Tokens of a context that are read in one pass."""


def measure_passes(context: SectionContext, rows: Rows) -> None:
    """Per shape, batch and nodes (the root is one of them): seconds of a pass."""
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


def read_context(runner: ModelRunner, length: int, seed: int) -> KVSequence:
    """A sequence that holds so many random tokens."""
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
    """`pass_s`: until the logits are there; `queued_s`: while the device never waits; `plain_bound_s`:
    reading all weights and the contexts' keys and values at the bandwidth of a copy."""
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
    """Tokens and parents of a tree of so many nodes, the first of which follows the context."""
    rng = np.random.default_rng(seed)
    parents = [path[-2] if len(path) > 1 else -1 for path in random_paths(rng, nodes)]
    return rng.integers(1, vocabulary, nodes).tolist(), parents
