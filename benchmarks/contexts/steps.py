"""Seconds of steps after contexts of some lengths, by the storage of keys and values."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.tables import head, line
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner

_READ = 256
"""Tokens of a context that are read; the others are copies, as attention takes the same time for them."""


class Step(NamedTuple):
    """One kind of step."""

    context: int
    requests: int
    rows: int
    """Rows of each request: a plain step has one."""

    @property
    def tokens(self) -> int:
        """Tokens that the requests have together."""
        return self.requests * (self.context + self.rows + _READ)


class LongContexts:
    """Requests with contexts of a length in one model's cache."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._runner, self._rng = runner, np.random.default_rng(0)
        self._sequences: list[KVSequence] = []

    def prepare(self, step: Step) -> None:
        """Put the contexts of a step into the cache."""
        lengths = [sequence.length for sequence in self._sequences]
        if lengths == [step.context] * step.requests:
            return
        for sequence in self._sequences:
            self._runner.cache.release(sequence)
        self._sequences = [self._runner.open() for _ in range(step.requests)]
        for sequence in self._sequences:
            self._runner.forward([Segment(sequence, self._tokens(min(_READ, step.context)))])
            self._lengthen(sequence, step.context)

    def _lengthen(self, sequence: KVSequence, length: int) -> None:
        cache, read = self._runner.cache, sequence.length
        while (start := sequence.length) < length:
            count = min(read, length - start)
            cache.reserve(sequence, count)
            cache.append(sequence, self._tokens(count))
            self._runner.features.move(sequence.slots(0, count), sequence.slots(start, start + count))

    def run(self, step: Step) -> float:
        """Run one step and return its seconds."""
        tokens = self._tokens(step.rows)
        segments = [Segment(each, (), tokens, range(-1, step.rows - 1)) for each in self._sequences]
        started = self._clock()
        self._runner.forward(segments)
        taken = self._clock() - started
        for sequence in self._sequences:
            self._runner.cache.commit(sequence, ())
        return taken

    def _tokens(self, count: int) -> list[int]:
        return [*map(int, self._rng.integers(0, self._runner.config.vocab_size, count))]


def steps_of(contexts: Sequence[int], requests: Sequence[int], rows: Sequence[int]) -> list[Step]:
    """Return all kinds of steps."""
    return [Step(*each) for each in product(contexts, requests, rows)]


def measure(models: Mapping[str, LongContexts], step: Step, turns: int) -> dict[str, list[float]]:
    """Return the seconds of a step by model; they take turns, after one step each that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model.prepare(step)
        model.run(step)
    for _ in range(turns):
        for name, model in models.items():
            taken[name].append(model.run(step))
    return taken


def table(found: Mapping[Step, Mapping[str, Sequence[float]]]) -> list[str]:
    """Return the lines of a table in milliseconds: medians, with the minimum in brackets."""
    names = list(next(iter(found.values())))
    lines = head([f"{name}, ms" for name in names], "context, requests x rows")
    for step, taken in found.items():
        cells = [f"{1e3 * median(taken[name]):.1f} ({1e3 * min(taken[name]):.1f})" for name in names]
        lines.append(line(f"{step.context}, {step.requests} x {step.rows}", cells))
    return lines
