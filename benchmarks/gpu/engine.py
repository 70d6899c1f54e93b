"""Measure passes by nodes, and steps of the verifier's engine, on random weights."""

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.kernels import random_paths
from benchmarks.gpu.run import GpuContext, ModelShape
from benchmarks.synthetic import GREEDY_32, RULE_NAME, WARNING, synthetic_rules
from benchmarks.tables import head, line
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.options import RunnerOptions, torch_dtype
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob

_LOADING_S = 40
"""Maximum seconds to load a shape and capture its passes."""
_CHUNK = 512
"""GpuContext tokens read per pass."""
_WARM_UP = 2
"""Number of untimed steps; the first step reads the contexts."""
_TREE = 32
"""Maximum nodes of a tree, root included."""


class RandomWeights(Mapping[str, torch.Tensor]):
    """Reproducible random tensors of a model, made on the device when read."""

    def __init__(self, config: Any, dtype: torch.dtype, device: str) -> None:
        from transformers import LlamaForCausalLM

        with torch.device("meta"):
            self._shapes = {name: p.shape for name, p in LlamaForCausalLM(config).named_parameters()}
        self._dtype, self._device = dtype, device

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = torch.ones(self._shapes[name], dtype=self._dtype, device=self._device)
        if tensor.dim() == 1:
            return tensor
        generator = torch.Generator(self._device).manual_seed(list(self._shapes).index(name))
        return tensor.normal_(0.0, 0.02, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights in a pass, without the embeddings."""
        numbers = {name: shape.numel() for name, shape in self._shapes.items()}
        return int(self._dtype.itemsize * (sum(numbers.values()) - numbers["model.embed_tokens.weight"]))


def random_runner(shape: ModelShape, context: GpuContext, room: int) -> tuple[ModelRunner, RandomWeights]:
    """Return a runner with random weights and a cache of `room` tokens, and the weights."""
    config, dtype, device = llama_config(shape), context.scale.dtype, context.device
    weights = RandomWeights(config, torch_dtype(dtype), device)
    options = RunnerOptions(dtype=dtype, device=device, executor="gpu", kv_tokens=room)
    return ModelRunner.build(from_transformers(config), weights, options), weights


def llama_config(shape: ModelShape) -> Any:
    """Return the configuration of a Llama model in the form of transformers."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads.query,
        num_key_value_heads=shape.heads.kv,
        head_dim=shape.heads.width,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )


def passes(context: GpuContext) -> Iterator[str]:
    """Yield a pass per shape, batch and nodes (root included)."""
    scale = context.scale
    yield from head(["pass, ms", "device, ms", "over one node", "pass / reading"], "shape, batch, nodes")
    for shape in scale.shapes:
        if context.left < _LOADING_S:
            yield line(shape.name, ["time is up"])
            return
        room = max(scale.batches) * (scale.context + max(scale.nodes) + 2 * _CHUNK)
        runner, weights = random_runner(shape, context, room)
        for batch in scale.batches:
            sequences = [read_context(runner, scale.context, seed) for seed in range(batch)]
            entries = batch * scale.context * shape.layers * 2 * shape.heads.kv * shape.heads.width
            reading = (weights.pass_bytes + entries * torch_dtype(scale.dtype).itemsize) / context.bandwidth
            one = 0.0
            for nodes in scale.nodes:
                pass_s, device_s = time_pass(runner, sequences, nodes, context)
                one = one or pass_s
                context.passes[shape.name, batch, nodes] = device_s
                cells = [f"{1000 * pass_s:.2f}", f"{1000 * device_s:.2f}"]
                cells += [f"{pass_s / one:.3f}x", f"{pass_s / reading:.2f}x"]
                yield line(f"{shape.name}, {batch}, {nodes}", cells)
            for sequence in sequences:
                runner.cache.release(sequence)
        del runner
        context.free()


def read_context(runner: ModelRunner, length: int, seed: int) -> KVSequence:
    """Return a cached sequence of `length` random tokens."""
    sequence, rng = runner.open(), np.random.default_rng(seed)
    tokens = rng.integers(1, runner.config.vocab_size, length).tolist()
    for start in range(0, length, _CHUNK):
        runner.forward([Segment(sequence, tokens[start : start + _CHUNK])])
    return sequence


def time_pass(
    runner: ModelRunner, sequences: Sequence[KVSequence], nodes: int, context: GpuContext
) -> tuple[float, float]:
    """Return seconds of a pass until its logits are ready, and of passes queued without waiting."""
    trees = [random_tree(runner.config.vocab_size, nodes, seed) for seed in range(len(sequences))]

    def call() -> None:
        runner.forward([Segment(s, (), *tree) for s, tree in zip(sequences, trees, strict=True)])
        for sequence in sequences:
            runner.cache.commit(sequence, ())

    return context.timer.waited(call), context.timer.queued(call)


def random_tree(vocabulary: int, nodes: int, seed: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents of a random tree, whose first node follows the context."""
    rng = np.random.default_rng(seed)
    parents = [path[-2] if len(path) > 1 else -1 for path in random_paths(rng, nodes)]
    return rng.integers(1, vocabulary, nodes).tolist(), parents


def tree_nodes(context: GpuContext) -> int:
    return min(_TREE, max(context.scale.nodes))


def steps(context: GpuContext) -> Iterator[str]:
    """Yield steps of the first shape, plain and with trees, under synthetic acceptance."""
    scale, shape = context.scale, context.scale.shapes[0]
    yield from (f"**{WARNING}**", "")
    columns = ["step, ms", "outside the device", "tokens per step", "tokens/s"]
    yield from head(columns, "shape, batch, nodes")
    room = max(scale.batches) * (scale.context + (_WARM_UP + scale.steps) * 10 + 2 * max(scale.nodes))
    runner, _ = random_runner(shape, context, room)
    limits = EngineLimits(max_step_tokens=max(scale.batches) * (scale.context + tree_nodes(context)))
    with synthetic_rules(GREEDY_32):
        engine = VerifierEngine(runner, RULE_NAME, limits)
        for batch in scale.batches:
            for nodes in (1, tree_nodes(context)):
                if context.left <= 0:
                    return
                times, tokens = _run(engine, batch, nodes, context)
                device_s, step_s = context.passes.get((shape.name, batch, nodes)), median(times)
                outside = "" if device_s is None else f"{100 * (1 - device_s / step_s):.1f} %"
                length = tokens / (batch * scale.steps)
                cells = [f"{1000 * step_s:.2f}", outside, f"{length:.2f}", f"{tokens / sum(times):.0f}"]
                yield line(f"{shape.name}, {batch}, {nodes}", cells)


def _run(engine: VerifierEngine, batch: int, nodes: int, context: GpuContext) -> tuple[list[float], int]:
    """Return seconds of every timed step, and their tokens."""
    rng, vocabulary = np.random.default_rng(batch), engine.runner.config.vocab_size
    texts = [rng.integers(1, vocabulary, context.scale.context).tolist() for _ in range(batch)]
    cached, times, tokens = [0] * batch, list[float](), 0
    for step in range(_WARM_UP + context.scale.steps):
        trees = [_tree(text[-1], nodes, vocabulary, step) for text in texts]
        jobs = [VerifyJob(f"r{i}", cached[i], texts[i][cached[i] :], trees[i], GREEDY) for i in range(batch)]
        started = time.perf_counter()
        outcomes = engine.verify(jobs)
        engine.settle()
        taken = time.perf_counter() - started
        for i, outcome in enumerate(outcomes):
            new = [
                *(int(trees[i].token_ids[node]) for node in outcome.accepted),
                outcome.bonus,
            ]
            texts[i] += new
            cached[i] = outcome.cached_len
            tokens += len(new) * (step >= _WARM_UP)
        times += [taken] * (step >= _WARM_UP)
    engine.release([f"r{i}" for i in range(batch)])
    return times, tokens


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
