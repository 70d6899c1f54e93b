"""Captures passes in CUDA graphs: one launch for hundreds of kernels.

A pass is captured once per bucket, a growth of trees once per `Levels`; both read their numbers at fixed addresses
(`specinfer.model.gpu.launch`). On a CPU, where the interpreter runs the kernels, the same code runs without capture.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from specinfer.model.batch import Batch
from specinfer.model.gpu.description import (
    MIN_WORDS,
    Bucket,
    contexts,
    power_above,
    tile_size,
    tree_words,
)

MAX_ROWS, MAX_REQUESTS = 256, 64
"""Maximum rows and requests of captured passes.

Larger passes read prompts: their kernels take longer than their launches.
"""


def bucket_of(requests: int, rows: int, group: int) -> Bucket:
    return Bucket(requests, rows, rows, MIN_WORDS, tile_size(rows, requests, group), group)


def bucket_grid(group: int) -> list[Bucket]:
    """Return all buckets to capture; those with most rows come first."""
    powers = [1 << i for i in range(MAX_ROWS.bit_length())]
    return [
        bucket_of(requests, rows, group)
        for rows in reversed(powers)
        for requests in powers
        if requests <= min(rows, MAX_REQUESTS)
    ]


def bucket_for(batch: Batch, group: int) -> Bucket | None:
    """Return the smallest bucket that fits a pass; None if too large."""
    requests, rows = power_above(len(batch.rows)), power_above(len(batch.token_ids))
    wide = tree_words(batch.rows, contexts(batch)) > MIN_WORDS
    if rows > MAX_ROWS or requests > MAX_REQUESTS or wide:
        return None
    return bucket_of(requests, rows, group)


def largest(grid: Sequence[Bucket]) -> Bucket:
    return max(grid, key=lambda bucket: bucket.starts["blocks"])


Sizes = TypeVar("Sizes", contravariant=True)
"""Sizes that select a captured sequence of kernels: a `Bucket` or levels."""


class Graphs(Protocol[Sizes]):
    """Runs sequences of kernels, one for each value of `Sizes`.

    A sequence reads its input at fixed addresses.
    """

    def capture(self, sizes: Sequence[Sizes]) -> None: ...

    def run(self, sizes: Sizes) -> torch.Tensor:
        """Run the sequence of these sizes; the next run overwrites the result."""


class EagerPasses(Generic[Sizes]):
    """Runs each sequence without a graph, for CPUs."""

    def __init__(self, run: Callable[[Sizes], torch.Tensor]) -> None:
        self._run = run

    def capture(self, sizes: Sequence[Sizes]) -> None: ...

    def run(self, sizes: Sizes) -> torch.Tensor:
        return self._run(sizes)


class CudaGraphs(Generic[Sizes]):
    """Replays captured sequences; runs other sequences without a graph."""

    def __init__(self, run: Callable[[Sizes], torch.Tensor]) -> None:
        self._run = run
        self._captured: dict[Sizes, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool: Any = None

    def capture(self, sizes: Sequence[Sizes]) -> None:
        """Capture sequences, the largest first: the others share its memory."""
        shown = track(sizes, "capturing passes", console=Console(stderr=True), disable=len(sizes) < 2)
        for one in shown:
            self._captured[one] = self._capture(one)

    def run(self, sizes: Sizes) -> torch.Tensor:
        captured = self._captured.get(sizes)
        if captured is None:
            return self._run(sizes)
        graph, result = captured
        graph.replay()
        return result

    def _capture(self, sizes: Sizes) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._run(sizes)  # compile kernels and initialise libraries, which a capture does not allow
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self._run(sizes)
        self._pool = graph.pool()
        return graph, result
