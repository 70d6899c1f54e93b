"""Environments of clients: what they depend on must not meet what the project depends on."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

VARIABLE = "SPECINFER_CLIENT_ENVIRONMENTS"


def environment(name: str, *requirements: str, alone: Sequence[str] = ()) -> Path:
    """The folder of programs of a virtual environment with these packages, made on first use.

    Packages that are to come `alone` come without what they depend on.

    Skips the test unless the variable names a directory for environments, and where a package cannot be had.
    """
    place = os.environ.get(VARIABLE)
    if not place:
        pytest.skip(f"{VARIABLE} names no directory for clients to be installed in")
    directory = Path(place) / name
    if not (directory / "complete").is_file():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        install = [str(directory / "bin" / "python"), "-m", "pip", "install", "-q"]
        for packages in [list(requirements), *([["--no-deps", *alone]] if alone else [])]:
            done = subprocess.run([*install, *packages], capture_output=True, text=True)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1]
                pytest.skip(f"{' '.join(packages)} cannot be installed: {reason}")
        (directory / "complete").touch()
    return directory / "bin"
