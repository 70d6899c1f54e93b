"""Memory and processor time of another process, and its memory over time."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.serving.steps import slope

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def resident_mib(pid: int) -> float:
    """Memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(slots=True)
class MemoryWatch:
    """Samples the memory of a process until cancelled."""

    pid: int
    every_s: float
    times: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Samples until cancelled."""
        started = time.perf_counter()
        while True:
            self.times.append(time.perf_counter() - started)
            self.mib.append(resident_mib(self.pid))
            await asyncio.sleep(self.every_s)

    def mib_per_hour(self) -> float:
        """Return how fast it grows in the second half: the first one warms up."""
        half = len(self.mib) // 2
        return 3600 * slope(self.times[half:], self.mib[half:])
