"""Runs the sections within the time, and writes what there is after each of them."""

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import markdown
from benchmarks.gpu.scale import Budget, Scale
from benchmarks.gpu.section import Rows, Section, SectionContext
from benchmarks.gpu.timers import Timer
from benchmarks.publish import write

log = logging.getLogger(__name__)
Say = Callable[[str], None]
COMPLETE, FIRST = "complete", "check"


class StoppedError(BaseException):
    """The time is over, or somebody ended the run: no fault, so nobody on the way may catch it as one."""


class Run:
    """One run of the benchmark. After every section, and when it is stopped, the report is on disk."""

    def __init__(
        self,
        device: str,
        timer: Timer,
        scale: Scale,
        budget: Budget,
        report: dict[str, Any],
        out: Path,
        say: Say,
        devices: int = 1,
    ) -> None:
        self._device, self._timer, self._scale, self._devices = device, timer, scale, devices
        self._budget, self._whole, self._out, self._say = budget, budget.left, out, say
        self._results: dict[str, Rows] = {}
        self.report = report | {"scale": scale.name, "results": self._results, "skipped": {}}
        self.report["ended"] = "stopped before its first section"

    def all_of(self, sections: Sequence[Section]) -> int:
        """Exit code: 0, or 1 if a kernel is wrong, or 3 if it was stopped."""
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
        if section.devices > self._devices:
            self._skip(section, f"needs {section.devices} devices, there is {self._devices}")
            return
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
        except Exception as error:  # whatever it is, the other sections are measured
            log.exception("section %s failed", section.name)
            self._skip(section, f"{type(error).__name__}: {error}")

    def _skip(self, section: Section, why: str) -> None:
        self._say(f"{section.name}: left out: {why}")
        self.report["skipped"][section.name] = why

    def _write(self) -> None:
        self.report["seconds"] = self._whole - self._budget.left
        write(self._out, markdown(self.report))


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Within, `StoppedError` is raised when the time is over or the process is asked to end."""

    def stop(number: int, frame: object) -> None:
        raise StoppedError("time is up" if number == signal.SIGALRM else "asked to end")

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
