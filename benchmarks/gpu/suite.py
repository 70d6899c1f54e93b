"""Run the tests of the GPU's code by pytest."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

from benchmarks.gpu.run import GpuContext
from specinfer.system.parent_process import ending_with_us

_ROOT = Path(__file__).resolve().parents[2]
_OUTCOME = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b")
_WORKERS = 4


def tests(context: GpuContext) -> Iterator[str]:
    """Yield each failure of the tests of the GPU's code, and their numbers by outcome."""
    command = [sys.executable, "-m", "pytest", "-v", "--no-header", "-p", "no:cacheprovider"]
    if context.device == "cuda":
        command += ["-n", str(_WORKERS)]
    environment = {**os.environ, "CXX": "/nowhere"}  # no compilation of kernels for CPUs
    with subprocess.Popen(
        ending_with_us([*command, *context.scale.tests]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=_ROOT,
        env=environment,
    ) as process:
        assert process.stdout is not None
        counts, last = Counter[str](), ""
        ending = Timer(context.left, process.kill)
        ending.start()
        for text in process.stdout:
            last = text.strip("= \n") or last
            found = _OUTCOME.search(text) if "::" in text else None
            if found and not text.startswith(found[1]):  # else it is a line of pytest's summary
                counts[found[1].lower()] += 1
                if found[1] in ("FAILED", "ERROR"):
                    yield f"- {last}"
        ending.cancel()
    shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    yield f"`pytest {' '.join(context.scale.tests)}`: {shown}. Its last line: {last}"
