"""Origin of a measurement: command, commit, machine. Every result file carries it."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specinfer.processor import processor_name


def about_this_run() -> dict[str, Any]:
    """Return command, commit, time and machine of this process."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
