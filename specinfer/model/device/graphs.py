"""Passes as CUDA graphs: launched as a whole, so that hundreds of kernels cost one launch.

A pass is captured once per bucket and reads its numbers where they always lie
(`specinfer.model.device.inputs`).
On a CPU, where the interpreter runs the kernels, passes are simply run: the same code, but for the capture.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import track

from specinfer.model.device.description import Bucket

Run = Callable[[Bucket], torch.Tensor]
"""Runs the pass whose numbers lie in the inputs; returns its logits."""


class Graphs(Protocol):
    """Runs passes of buckets."""

    def capture(self, buckets: Sequence[Bucket]) -> None:
        """Makes passes of these buckets quick."""

    def run(self, bucket: Bucket) -> torch.Tensor:
        """What a pass of this bucket returns; valid until the next pass."""


class EagerPasses:
    """Runs each pass anew."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def capture(self, buckets: Sequence[Bucket]) -> None:
        """See `Graphs.capture`: there is nothing to make quick."""

    def run(self, bucket: Bucket) -> torch.Tensor:
        """See `Graphs.run`."""
        return self._run(bucket)


class CudaGraphs:
    """Replays passes of captured buckets and runs others."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._captured: dict[Bucket, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool: Any = None

    def capture(self, buckets: Sequence[Bucket]) -> None:
        """See `Graphs.capture`. The largest comes first: the others use its memory."""
        largest_first = sorted(buckets, key=lambda bucket: -bucket.rows)
        for bucket in track(largest_first, "capturing passes", console=Console(stderr=True)):
            self._captured[bucket] = self._capture(bucket)

    def run(self, bucket: Bucket) -> torch.Tensor:
        """See `Graphs.run`."""
        captured = self._captured.get(bucket)
        if captured is None:
            return self._run(bucket)
        graph, result = captured
        graph.replay()
        return result

    def _capture(self, bucket: Bucket) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._run(bucket)  # compiles kernels and lets libraries set up what must not happen in a capture
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self._run(bucket)
        self._pool = graph.pool()
        return graph, result
