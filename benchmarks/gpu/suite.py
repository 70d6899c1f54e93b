"""Run the tests of the GPU's code by pytest."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.run import GpuContext

_ROOT = Path(__file__).resolve().parents[2]
_FAILURES, _LAST = 20, 3
"""Numbers of pytest's lines in the report: of failures, and at the end."""
_WORKERS = 4


def tests(context: GpuContext) -> Iterator[str]:
    """Yield failures and the end of pytest's output, also if time is up."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        *context.scale.tests,
    ]
    if context.device == "cuda":
        command += ["-n", str(_WORKERS)]
    environment = {**os.environ, "CXX": "/nowhere"}  # no compilation of kernels for CPUs
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, cwd=_ROOT, env=environment, timeout=context.left, check=False
        )
        output, end = done.stdout, ""
    except subprocess.TimeoutExpired as error:
        output, end = error.stdout or b"", "Time is up."
    lines = output.decode().splitlines()
    failures = [text for text in lines if "FAILED" in text or "ERROR" in text]
    yield from ("```", *failures[:_FAILURES], *lines[-_LAST:], "```")
    yield f"{sum('PASSED' in text for text in lines)} tests passed. {end}"
