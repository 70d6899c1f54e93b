"""Run sections within a time limit; write the report after each."""

import gc
import logging
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.gpu.report import markdown
from benchmarks.gpu.scale import Budget, Scale
from benchmarks.publish import write

Call = Callable[[], object]
_WARM_UP, _REPEATS = 3, 20
_FEW = 0.05
"""Seconds of repetitions after which only `_MIN_REPEATS` calls are needed."""
_MIN_REPEATS = 3
_IN_A_ROW = 10
"""Number of calls that are queued together."""


class Timer(Protocol):
    """Medians of repeated calls, in seconds."""

    def launched(self, calls: Sequence[Call]) -> float:
        """Return the mean device time in seconds of calls launched together.

        The host's time does not count. Each call has its own data, which is thus not in the chip's cache.
        """

    def queued(self, call: Call) -> float:
        """Return the seconds per call of many independent calls.

        This is the device's time per call, or the host's if longer.
        """

    def waited(self, call: Call) -> float:
        """Return the seconds of a call until the device has finished."""


class HostTimer:
    """Timer for devices on which calls are synchronous."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def launched(self, calls: Sequence[Call]) -> float:
        return self.waited(lambda: [call() for call in calls]) / len(calls)

    def queued(self, call: Call) -> float:
        return self.waited(call)

    def waited(self, call: Call) -> float:
        call()
        times: list[float] = []
        while len(times) < _MIN_REPEATS or (len(times) < _REPEATS and sum(times) < _FEW):
            started = self._clock()
            call()
            times.append(self._clock() - started)
        return statistics.median(times)


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
        seconds = self._events(graph.replay)
        return seconds / len(calls)

    def queued(self, call: Call) -> float:
        def many() -> None:
            for _ in range(_IN_A_ROW):
                call()

        return self._wall(many, _MIN_REPEATS) / _IN_A_ROW

    def waited(self, call: Call) -> float:
        return self._wall(call, _REPEATS)

    def _events(self, call: Call) -> float:
        times = list[float]()
        for number in range(_WARM_UP + _REPEATS):
            events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            start, end = events
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


Rows = list[dict[str, Any]]


def give_back_memory(device: str) -> None:
    """Free unused device memory, including executors in reference cycles."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class SectionContext:
    """Device, timer, sizes and budget of a section."""

    device: str
    timer: Timer
    scale: Scale
    budget: Budget
    """Time budget of this section."""
    say: Callable[[str], None]
    results: dict[str, Rows]
    """Rows of earlier sections, by name."""


class Measure(Protocol):
    """Measure a section; append each row at once, to survive timeouts."""

    def __call__(self, context: SectionContext, rows: Rows) -> None: ...


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report."""

    name: str
    measure: str
    """`module:function`; a library missing at the import skips only this section."""
    seconds: float
    """Maximum seconds of the section."""

    def load(self) -> Measure:
        """Import and return the section's function."""
        module, name = self.measure.split(":")
        measure: Measure = getattr(import_module(module), name)
        return measure


SECTIONS = (
    Section("check", "benchmarks.gpu.workload:check_kernels", 60),
    Section("bandwidth", "benchmarks.gpu.attention:measure_bandwidth", 10),
    Section("attention", "benchmarks.gpu.attention:measure_attention", 90),
    Section("passes", "benchmarks.gpu.engine:measure_passes", 170),
    Section("executors", "benchmarks.gpu.engine:measure_executors", 30),
    Section("engine", "benchmarks.gpu.engine:measure_engine", 40),
    Section("drafting", "benchmarks.gpu.engine:measure_drafting", 20),
)


log = logging.getLogger(__name__)
Say = Callable[[str], None]
COMPLETE, FIRST = "complete", "check"


class StoppedError(BaseException):
    """The time limit or a signal ends the run, past every `except Exception`."""


class Run:
    """A run of the benchmark. The report is written after every section."""

    def __init__(
        self,
        device: str,
        timer: Timer,
        scale: Scale,
        budget: Budget,
        report: dict[str, Any],
        out: Path,
        say: Say,
    ) -> None:
        self._device, self._timer, self._scale = device, timer, scale
        self._budget, self._whole, self._out, self._say = budget, budget.left, out, say
        self._results: dict[str, Rows] = {}
        self.report = report | {"scale": scale.name, "results": self._results, "skipped": {}}
        self.report["ended"] = "stopped before its first section"

    def all_of(self, sections: Sequence[Section]) -> int:
        """Run sections; return the exit code.

        0: complete; 1: a kernel is wrong; 3: stopped.
        """
        code = 0
        try:
            for section in sections:
                self.report["ended"] = f"stopped in section {section.name}"
                self._section(section)
                self._write()
                if section.name == FIRST and FIRST in self.report["skipped"]:
                    self.report["ended"] = "the kernels were not found right, so nothing was timed"
                    code = 1
                    break
            else:
                self.report["ended"] = COMPLETE
        except (StoppedError, KeyboardInterrupt) as stopped:
            self.report["ended"] += f": {stopped}" if str(stopped) else ""
            code = 3
        self._write()
        return code

    def _section(self, section: Section) -> None:
        if self._budget.left <= 0:
            self._skip(section, "time is up")
            return
        try:
            measure = section.load()
        except ImportError as error:
            self._skip(section, f"cannot be imported here: {error}")
            return
        rows = self._results[section.name] = []
        budget = self._budget.part(section.seconds)
        context = SectionContext(self._device, self._timer, self._scale, budget, self._say, self._results)
        try:
            measure(context, rows)
        except ImportError as error:
            self._skip(section, f"cannot be imported here: {error}")
        except Exception as error:  # the other sections are still measured
            log.exception("section %s failed; the next section follows", section.name)
            self._skip(section, f"{type(error).__name__}: {error}")

    def _skip(self, section: Section, reason: str) -> None:
        self._say(f"{section.name}: left out: {reason}")
        self.report["skipped"][section.name] = reason

    def _write(self) -> None:
        self.report["seconds"] = self._whole - self._budget.left
        write(self._out, markdown(self.report))


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Raise `StoppedError` in the context after `seconds` or a signal."""

    def stop(number: int, frame: object) -> None:
        raise StoppedError("the time limit is over" if number == signal.SIGALRM else "received SIGTERM")

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
