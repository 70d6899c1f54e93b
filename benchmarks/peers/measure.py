"""Measure requests in the same way in every peer script.

It uses only the standard library, as it runs in every peer's environment.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Task = dict[str, Any]


def answer_tasks(load: Callable[[Task], Callable[[Task], dict[str, Any]]]) -> None:
    """Answer each task, a line of JSON, with a line of JSON.

    `load` runs once, with the first task. What libraries print goes to standard error.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    measure = None
    for line in sys.stdin:
        task = json.loads(line)
        measure = measure or load(task)
        print(json.dumps(measure(task)), file=replies, flush=True)


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass
class Recorder:
    """Record token times of requests that run one after another."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    growth_mib: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    rounds: int = 0
    _times: list[float] = field(default_factory=list)
    _started: float = 0.0
    _memory: float = 0.0

    def begin(self) -> None:
        """Record the start of a request."""
        self._times, self._memory = [], resident_mib()
        self._started = time.perf_counter()

    def tick(self) -> None:
        """Record the end of a round, which produced tokens."""
        self._times.append(time.perf_counter())

    def end(self, output: list[int], rounds: int | None = None) -> None:
        """Record the end of a request, and its tokens."""
        first, last = self._times[0], time.perf_counter()
        self.ttft_s.append(first - self._started)
        self.tpot_s.append((last - first) / max(1, len(output) - 1))
        self.growth_mib.append(resident_mib() - self._memory)
        self.outputs.append(output)
        self.rounds += len(self._times) if rounds is None else rounds

    def report(self, proposed: int = 0) -> dict[str, Any]:
        """Return medians over all requests but the first, which warms up."""
        tokens = sum(map(len, self.outputs))
        accepted = tokens - self.rounds
        return {
            "ttft_ms": 1000 * statistics.median(self.ttft_s[1:]),
            "tpot_ms": 1000 * statistics.median(self.tpot_s[1:]),
            "memory_growth_mib": max(self.growth_mib[1:]),
            "tokens_per_round": tokens / self.rounds,
            **({"acceptance_rate": accepted / proposed} if proposed else {}),
        }

    def rate(self, new_tokens: int) -> float:
        """Return tokens per second over all requests but the first."""
        seconds = [t + p * (new_tokens - 1) for t, p in zip(self.ttft_s, self.tpot_s, strict=True)]
        return new_tokens * (len(seconds) - 1) / sum(seconds[1:])
