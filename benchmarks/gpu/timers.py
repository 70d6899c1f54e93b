"""Time calls on a GPU and on a CPU."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]
_WARM_UP, _REPEATS = 3, 20
_FEW = 0.05
"""Seconds of repetitions after which a slow call is repeated no further."""
_LEAST_REPEATS = 3
_IN_A_ROW = 10
"""Calls that do not wait for each other."""


class Timer(Protocol):
    """Medians of repeated calls, in seconds."""

    def launched(self, calls: Sequence[Call]) -> float:
        """Time of one of these calls on the device, launched together so that the host is not waited for.

        The calls do the same on data of their own: what one left in the chip's cache is useless to the next.
        """

    def queued(self, call: Call) -> float:
        """Time of a call among many that do not wait for each other: the device's, or the host's if that
        is longer."""

    def waited(self, call: Call) -> float:
        """Time of a call until the device has done it."""


class HostTimer:
    """For devices that are done when a call returns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def launched(self, calls: Sequence[Call]) -> float:
        """Implement `Timer.launched`."""
        return self.waited(lambda: [call() for call in calls]) / len(calls)

    def queued(self, call: Call) -> float:
        """Implement `Timer.queued`."""
        return self.waited(call)

    def waited(self, call: Call) -> float:
        """Implement `Timer.waited`."""
        call()
        times: list[float] = []
        while len(times) < _LEAST_REPEATS or (len(times) < _REPEATS and sum(times) < _FEW):
            started = self._clock()
            call()
            times.append(self._clock() - started)
        return statistics.median(times)


class GpuTimer:
    """By CUDA events; kernels as replays of one captured graph."""

    def launched(self, calls: Sequence[Call]) -> float:
        """Implement `Timer.launched`."""
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
        seconds = self._events(graph.replay)
        return seconds / len(calls)

    def queued(self, call: Call) -> float:
        """Implement `Timer.queued`."""

        def many() -> None:
            for _ in range(_IN_A_ROW):
                call()

        return self._wall(many, _LEAST_REPEATS) / _IN_A_ROW

    def waited(self, call: Call) -> float:
        """Implement `Timer.waited`."""
        return self._wall(call, _REPEATS)

    def _events(self, call: Call) -> float:
        times = []
        for number in range(_WARM_UP + _REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            if number >= _WARM_UP:
                times.append(start.elapsed_time(end) / 1000)
        return statistics.median(times)

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
