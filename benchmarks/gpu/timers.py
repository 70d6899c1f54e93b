"""Medians of repeated calls on a host or a GPU, in seconds."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Call = Callable[[], object]
_WARM_UP, _REPEATS, _IN_A_ROW = 3, 20, 10


class Timer(Protocol):
    def launched(self, calls: Sequence[Call]) -> float:
        """Return the mean device time of calls launched together.

        The host's time does not count. Each call has its own data, which is thus not in the chip's cache.
        """

    def queued(self, call: Call) -> float:
        """Return the time per call of independent calls: the device's, or the host's if longer."""

    def waited(self, call: Call) -> float:
        """Return the time of a call until the device has finished."""


class HostTimer:
    """Timer for devices on which calls are synchronous."""

    def launched(self, calls: Sequence[Call]) -> float:
        return self.waited(lambda: [call() for call in calls]) / len(calls)

    def queued(self, call: Call) -> float:
        return self.waited(call)

    def waited(self, call: Call) -> float:
        call()
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


class GpuTimer:
    """Timer by CUDA events; kernels are replayed from a captured graph."""

    def launched(self, calls: Sequence[Call]) -> float:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                for call in calls:
                    call()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        times = list[float]()
        for number in range(_WARM_UP + _REPEATS):
            events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            start, end = events
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= _WARM_UP:
                times.append(start.elapsed_time(end) / 1000)
        return statistics.median(times) / len(calls)

    def queued(self, call: Call) -> float:
        return self._wall(lambda: [call() for _ in range(_IN_A_ROW)], 3) / _IN_A_ROW

    def waited(self, call: Call) -> float:
        return self._wall(call, _REPEATS)

    def _wall(self, call: Call, repeats: int) -> float:
        times = []
        for number in range(_WARM_UP + repeats):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if number >= _WARM_UP:
                times.append(time.perf_counter() - started)
        return statistics.median(times)
