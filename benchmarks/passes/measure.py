"""Measures passes of our runtime, and counts the bytes that one reads."""

import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.passes.report import CHUNK
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.blocks import BlockWeights
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING, in_llama_names
from specinfer.model.weights.files import GgufWeights, shape_of
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.source import kept_gguf

SPARE = 256
"""Cache tokens beyond context and chunk."""


class SystemTimes(NamedTuple):
    """Times of one system in a turn."""

    seconds: list[float]
    """One for each pass."""
    context: float
    """Seconds in which the context was read, once."""


class OurPasses:
    """A model with a context in its cache."""

    def __init__(self, directory: Path, longest: int) -> None:
        """Load a model; no context is longer than `longest`."""
        self.threads = torch.get_num_threads()
        self.runner = ModelRunner.load(directory, RunnerOptions(kv_tokens=longest + CHUNK + SPARE))
        self._sequence: KVSequence | None = None
        self._context_seconds = 0.0
        self._rng = np.random.default_rng(0)

    def _read_context(self, tokens: int) -> None:
        if self._sequence is not None:
            self.runner.cache.release(self._sequence)
        self._sequence = self.runner.open()
        text = self._tokens(tokens)
        started = time.perf_counter()
        for start in range(0, tokens, CHUNK):
            self.runner.forward([Segment(self._sequence, text[start : start + CHUNK])])
        self._context_seconds = time.perf_counter() - started

    def measure(self, context: int, sizes: Sequence[int]) -> SystemTimes:
        """Measure passes of so many rows, each with logits; of a prompt's chunk, only the last has."""
        if self._sequence is None or self._sequence.length != context:
            self._read_context(context)
        return SystemTimes([self._pass(size) for size in sizes], self._context_seconds)

    def _pass(self, size: int) -> float:
        assert self._sequence is not None
        tokens = self._tokens(size)
        if size == CHUNK:
            return self._chunk(self._sequence, tokens)
        started = time.perf_counter()
        self.runner.forward([Segment(self._sequence, (), tokens, range(-1, size - 1))])
        taken = time.perf_counter() - started
        self.runner.cache.commit(self._sequence, ())
        return taken

    def _chunk(self, sequence: KVSequence, tokens: list[int]) -> float:
        fork = self.runner.cache.fork(sequence, sequence.length)
        started = time.perf_counter()
        self.runner.forward([Segment(fork, tokens, want_last=True)])
        taken = time.perf_counter() - started
        self.runner.cache.release(fork)
        return taken

    def _tokens(self, count: int) -> list[int]:
        return [*map(int, self._rng.integers(0, self.runner.config.vocab_size, count))]


def matrix_bytes(directory: Path, config: ModelConfig) -> int:
    """Return the bytes of the matrices that a pass reads whole, so not of embeddings to look up."""
    path = kept_gguf(directory)
    weights = in_llama_names(config, GgufWeights(path) if path else open_checkpoint(directory))
    total = 0
    for name in weights:
        shape = shape_of(weights, name)
        if len(shape) != 2 or (name == EMBEDDING and not config.tied_embeddings):
            continue
        blocks = weights.blocks(name) if isinstance(weights, BlockWeights) else None
        total += blocks[1].nbytes if blocks else 2 * prod(shape)
    return total
