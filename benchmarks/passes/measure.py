"""Measure passes of our runtime, and count the bytes read."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.tables import head, line, origin
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING, in_llama_names
from specinfer.model.weights.files import shape_of
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.interfaces import BlockWeights
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.source import kept_gguf
from specinfer.scheduling.limits import SchedulerLimits

SPARE = 256
"""Cache tokens needed in addition to context and chunk."""


class SystemTimes(NamedTuple):
    """Times of one system in a turn."""

    seconds: list[float]
    """Seconds of each pass."""
    context: float
    """Seconds to read the context, at most `READ` tokens."""


READ = 2048
"""Maximum context tokens to read; longer contexts copy cached keys and values."""

_SHORT = 64
"""Tokens that each request after the first reads; the rest is copied."""


class OurPasses:
    """A model whose cache has contexts of one length."""

    def __init__(self, runner: ModelRunner) -> None:
        """Use `runner`; its cache has room for contexts, chunk and `SPARE`."""
        self.threads = torch.get_num_threads()
        self.runner = runner
        self._sequences: list[KVSequence] = []
        self._context_seconds = 0.0
        self._rng = np.random.default_rng(0)

    def measure(self, context: int, requests: int, sizes: Sequence[int]) -> SystemTimes:
        """Time a pass of each size (`CHUNK` rows: last logits only)."""
        if [sequence.length for sequence in self._sequences] != [context] * requests:
            self._make_contexts(context, requests)
        return SystemTimes([self._pass(size) for size in sizes], self._context_seconds)

    def _make_contexts(self, tokens: int, requests: int) -> None:
        for sequence in self._sequences:
            self.runner.cache.release(sequence)
        self._sequences = [self.runner.open() for _ in range(requests)]
        for place, sequence in enumerate(self._sequences):
            read = min(tokens, _SHORT if place else READ)
            text, started = self._tokens(read), time.perf_counter()
            for start in range(0, read, CHUNK):
                self.runner.forward([Segment(sequence, text[start : start + CHUNK])])
            self._context_seconds = self._context_seconds if place else time.perf_counter() - started
            self._lengthen(sequence, tokens)

    def _lengthen(self, sequence: KVSequence, length: int) -> None:
        cache, read = self.runner.cache, sequence.length
        while (start := sequence.length) < length:
            count = min(read, length - start)
            cache.reserve(sequence, count)
            cache.append(sequence, self._tokens(count))
            self.runner.features.move(sequence.slots(0, count), sequence.slots(start, start + count))

    def _pass(self, size: int) -> float:
        if size == CHUNK:
            return self._chunk(self._sequences[0])
        tokens = self._tokens(size)
        started = time.perf_counter()
        self.runner.forward(
            [Segment(open_sequence, (), tokens, range(-1, size - 1)) for open_sequence in self._sequences]
        )
        taken = time.perf_counter() - started
        for sequence in self._sequences:
            self.runner.cache.commit(sequence, ())
        return taken

    def _chunk(self, sequence: KVSequence) -> float:
        other = self.runner.open()
        known = self.runner.cache.share(other, sequence.tokens)
        if rest := sequence.tokens[known:]:
            self.runner.forward([Segment(other, rest)])
        tokens = self._tokens(CHUNK)
        started = time.perf_counter()
        self.runner.forward([Segment(other, tokens, want_last=True)])
        taken = time.perf_counter() - started
        self.runner.cache.release(other)
        return taken

    def _tokens(self, count: int) -> list[int]:
        return [*map(int, self._rng.integers(0, self.runner.config.vocab_size, count))]


def matrix_bytes(directory: Path, config: ModelConfig) -> int:
    """Return the bytes of matrices read in a pass, without embeddings."""
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


TITLE = """# Passes by rows

A pass reads all matrices once and gives logits for each of its rows, which follow a context.
Medians of turns, in which the systems take turns too; in brackets the minimum and maximum.
With several requests a pass has that many rows of each of them.
Prompts: 512 tokens after a short context; after a long one the context itself, read once in chunks of 512, at most
2,048 tokens of it; the rest of a longer one is copied.
llama.cpp reads the same file with as many threads, by `llama_decode`, with flash attention.
bf16, q8_0: format of the cached keys and values (`--kv-type`; `-ctk`, `-ctv`); llama.cpp has f16 for bf16.
GB/s: bytes of the matrices that a pass reads, over its seconds. Ratio: to the pass of the fewest rows.
"""
CHUNK = SchedulerLimits().prefill_chunk
"""Rows of a pass for a prompt, equal to the service's."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured figures of one system after one context."""

    passes: dict[int, list[float]] = field(default_factory=dict)
    """Rows of a pass -> seconds of each repetition."""
    prompt_rates: list[float] = field(default_factory=list)
    """Tokens per second of reading a prompt, per repetition."""

    def add(self, sizes: Sequence[int], seconds: Sequence[float]) -> None:
        """Add passes."""
        for size, taken in zip(sizes, seconds, strict=True):
            if size == CHUNK:
                self.prompt_rates.append(size / taken)
            else:
                self.passes.setdefault(size, []).append(taken)

    def median(self, rows: int) -> float:
        """Return the median seconds of passes of `rows` rows."""
        return median(self.passes[rows])


def section(title: str, figures: dict[str, Figures], size: int, about: dict[str, Any]) -> str:
    """Return the report's section on one model and context length.

    Args:
        figures: figures by system; the first system is compared with the others.
        size: bytes of the matrices that a pass reads.
        about: command, commit, time and machine of the run; `weights` has the formats.
    """
    first, *others = figures
    rows = [*figures[first].passes]
    columns = [f"{system}{unit}" for system in figures for unit in (", ms", ", GB/s", ", ratio")]
    lines = [
        f"## {title}",
        "",
        f"{origin(about)}.",
        f"Weights {about['weights']};",
        f"{size / 1e6:.0f} MB a pass.",
        "",
    ]
    lines += head([*columns, *(f"{other} / {first}" for other in others)], "rows")
    for count in rows:
        cells = [cell for figures_of in figures.values() for cell in _cells(figures_of, count, rows[0], size)]
        factors = [figures[other].median(count) / figures[first].median(count) for other in others]
        lines.append(line(str(count), [*cells, *(f"{factor:.2f}" for factor in factors)]))
    rates = [f"{system} {spread(figures_of.prompt_rates)}" for system, figures_of in figures.items()]
    return "\n".join([*lines, "", f"Tokens of a prompt a second: {', '.join(rates)}.", ""])


def _cells(figures: Figures, count: int, fewest: int, size: int) -> list[str]:
    milliseconds = spread([1000 * seconds for seconds in figures.passes[count]])
    middle = figures.median(count)
    return [milliseconds, f"{size / middle / 1e9:.1f}", f"{middle / figures.median(fewest):.2f}"]


def spread(values: list[float]) -> str:
    """Return median, minimum and maximum, for example "12.3 (12.0..13.1)"."""
    return f"{_short(median(values))} ({_short(min(values))}..{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
