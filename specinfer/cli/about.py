"""Record the origin of a measurement: command, commit, time and machine."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specinfer.system.machine import processor_name


def about_this_run(program: str = "") -> dict[str, Any]:
    """Return command, commit, time and machine of this process.

    `program` is the command's name; empty: the name of the running file. Of arguments that are paths outside the
    working directory, only the last part is returned.
    """
    return {
        "command": " ".join([program or Path(sys.argv[0]).name, *map(_elsewhere, sys.argv[1:])]),
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _elsewhere(argument: str) -> str:
    """Keep only the last part of a path outside the working directory."""
    name, equals, value = argument.rpartition("=")
    path = Path(value)
    outside = path.is_absolute() or ".." in path.parts
    return f"{name}{equals}{path.name}" if outside else argument


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
