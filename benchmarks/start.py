"""Measure how long servers take to start, ours and llama-server in turns.

    python -m benchmarks start --llama-server FILE

A first start follows `specinfer models pull` of the model and its draft: no measured passes are known. Compiled kernels
are kept. Files are in the page cache. A start is ready when `/health` answers 200.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.publish import RESULTS, publish
from specinfer.cli.about import about_this_run
from specinfer.cli.local.processes import free_ports
from specinfer.drafters.draft import draft_group
from specinfer.hub import resolve_model
from specinfer.hub.resolve import is_pulled
from specinfer.model.weights.source import kept_gguf
from specinfer.system.cache_directory import cache_directory
from specinfer.system.threads import usable_processors

_MODELS = ("smollm2-135m", "qwen2.5-coder-1.5b")
_LONGEST_S = 300.0
_LOOK_S = 0.02


class StartFigures(NamedTuple):
    """Figures of one start."""

    port_s: float
    """Seconds until the port answers."""
    ready_s: float
    cpu_s: float
    """Processor seconds of the process and its ended children until then."""
    resident: float
    """Resident memory of the process then, in GB."""


def start_once(command: Sequence[str], environment: Mapping[str, str]) -> StartFigures:
    """Start a server, wait until it is ready, end it; `{port}` in the command is replaced."""
    (port,) = free_ports(1)
    url, started, port_s = f"http://127.0.0.1:{port}/health", time.perf_counter(), 0.0
    filled = [part.format(port=port) for part in command]
    with subprocess.Popen(
        filled, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while (seconds := time.perf_counter() - started) < _LONGEST_S:
                if process.poll() is not None:
                    sys.exit(f"{filled[0]} ended with {process.returncode}")
                status = _status(url)
                port_s = port_s or (seconds if status else 0.0)
                if status == 200:
                    return StartFigures(port_s, seconds, *_usage(process.pid))
                time.sleep(_LOOK_S)
            sys.exit(f"{filled[0]} is not ready after {_LONGEST_S:.0f} s")
        finally:
            process.terminate()


def _status(url: str) -> int:
    """Return the status of a call; 0 if nothing listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _usage(pid: int) -> tuple[float, float]:
    """Return a process's processor seconds with its ended children's, and its resident GB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def empty_cache(folder: Path) -> dict[str, str]:
    """Return the environment of a cache with models and kernels, but nothing derived."""
    (folder / "native").symlink_to(cache_directory() / "native")
    for source in filter(Path.is_file, (cache_directory() / "models").rglob("*")):
        target = folder / source.relative_to(cache_directory())
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".gguf":
            target.hardlink_to(source)
        else:
            shutil.copyfile(source, target)
    return {**os.environ, "SPECINFER_CACHE": str(folder)}


def measure(model: str, rounds: int, llama_server: Path | None) -> list[str]:
    """Return the table's rows for a model."""
    ours = [sys.executable, "-m", "all_in_one", "--listen", "127.0.0.1:{port}", "--model", model]
    gguf = kept_gguf(resolve_model(model))
    draft = (draft_group(model) or {}).get("model", model)
    pulled = [name for name in dict.fromkeys((model, draft)) if is_pulled(name)]
    first, second, theirs = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
            environment = empty_cache(Path(folder))
            for name in pulled:
                command = [sys.executable, "-m", "specinfer.cli", "models", "pull", name]
                subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
            first.append(start_once(ours, environment))
            second.append(start_once(ours, environment))
        if llama_server is not None and gguf is not None:
            options = ["--port", "{port}", "-c", "4096", "-t", str(usable_processors())]
            theirs.append(start_once([str(llama_server), "-m", str(gguf), *options], os.environ))
    named = [("first start", first), ("second start", second), ("llama-server, without a draft", theirs)]
    return [_row(model, name, starts) for name, starts in named if starts]


def _row(model: str, name: str, starts: Sequence[StartFigures]) -> str:
    port, ready, cpu, resident = (statistics.median(values) for values in zip(*starts, strict=True))
    return f"| {model}, {name} | {port:.1f} | {ready:.1f} | {cpu:.1f} | {resident:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks start", description=__doc__)
    parser.add_argument("--models", default=",".join(_MODELS), help="models, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each kind; medians count")
    parser.add_argument("--llama-server", type=Path, help="llama-server to compare with")
    parser.add_argument("--out", type=Path, default=RESULTS / "start")
    given = parser.parse_args()
    rows = [
        row for model in given.models.split(",") for row in measure(model, given.rounds, given.llama_server)
    ]
    head = "| model, start | port, s | ready, s | processor, s | resident, GB |\n|---|---|---|---|---|"
    about = about_this_run("python -m benchmarks start")
    made = f"`{about['command']}` at {about['commit']}, {about['time']}, {about['cores']} cores of {about['cpu']}"
    text = f"# Starts of `specinfer serve`\n\n{made}; medians of {given.rounds}.\n\n{head}\n"
    publish(given.out, text + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
