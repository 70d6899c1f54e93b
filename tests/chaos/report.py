"""Report a run of chaos: the last line of output, and the JSON file."""

import os
import platform
import statistics
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Report:
    """Counts and problems of a run."""

    requests: int = 0
    """Requests that finished and were compared."""
    tokens: int = 0
    lost: int = 0
    repeated: int = 0
    changed: int = 0
    unfinished: int = 0
    retries: int = 0
    """Streams that a client continued at a gateway."""
    looks: int = 0
    """Checks in Redis of a client's tokens."""
    failed_starts: int = 0
    """Processes that ended during their start, because a service that they need was down."""
    faults: Counter[str] = field(default_factory=Counter)
    times: list[tuple[float, str]] = field(default_factory=list)
    """(time, kind) of every fault."""
    problems: list[str] = field(default_factory=list)

    def fault(self, time: float, kind: str) -> None:
        """Record a fault."""
        self.faults[kind] += 1
        self.times.append((time, kind))

    def problem(self, kind: str, tokens: int, message: str) -> None:
        """Record a problem; `kind` is the name of a count."""
        setattr(self, kind, getattr(self, kind) + tokens)
        self.problems.append(f"{kind}: {message}")

    @property
    def good(self) -> bool:
        """True if no token was lost, repeated or changed, and all requests ended."""
        return not self.problems

    def last_line(self) -> str:
        """The result of the run in one line."""
        parts = [
            f"faults injected {self.faults.total()}",
            f"requests {self.requests}",
            f"tokens lost {self.lost}",
            f"repeated {self.repeated}",
            f"changed {self.changed}",
        ]
        if self.problems and not self.lost + self.repeated + self.changed:
            parts.append(f"problems {len(self.problems)}")
        return ", ".join(parts)

    def to_json(self, pauses: Mapping[str, Sequence[float]], about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole report as JSON."""
        return {
            **about,
            "faults": self.faults.total(),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "requests": self.requests,
            "tokens": self.tokens,
            "streams_resumed": self.retries,
            "looks_into_redis": self.looks,
            "failed_starts": self.failed_starts,
            "tokens_lost": self.lost,
            "tokens_repeated": self.repeated,
            "tokens_changed": self.changed,
            "unfinished": self.unfinished,
            "problems": self.problems[:50],
            "longest_pause_seconds": {kind: quantiles(seconds) for kind, seconds in sorted(pauses.items())},
        }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    if len(values) < 2:
        values = [*values, *values] or [0.0, 0.0]
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return {name: round(x, 3) for name, x in (("p50", cuts[9]), ("p95", cuts[18]), ("max", max(values)))}


def about_this_run(command: str, seed: int, seconds: float) -> dict[str, Any]:
    """Return the machine, commit and time on which the figures depend."""
    return {
        "command": command,
        "seed": seed,
        "seconds": round(seconds, 1),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed_files": len(_git("status", "--porcelain").splitlines()),
        "machine": f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    models = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return models[0].partition(":")[2].strip() if models else platform.machine()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
