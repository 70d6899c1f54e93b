"""Environments of clients, from PyPI and npm, so that their dependencies do not conflict with the project's."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

VARIABLE = "SPECINFER_CLIENT_ENVIRONMENTS"


def environment(name: str, *requirements: str, alone: Sequence[str] = ()) -> Path:
    """Return the folder of programs of a virtual environment with these packages; create it on first use.

    Packages in `alone` are installed without their dependencies.

    Skips the test if the variable names no directory for environments, or if a package is not available.
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


def node_environment(name: str, package: str) -> Path:
    """Return the folder of programs of an npm package; install it on first use.

    Skips the test as `environment` does, and without npm.
    """
    place, npm = os.environ.get(VARIABLE), shutil.which("npm")
    if not place or npm is None:
        pytest.skip(f"{VARIABLE} names no directory, or there is no npm")
    directory = Path(place) / name
    if not (directory / "complete").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(directory), "--no-audit", "--no-fund", package]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{package} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        (directory / "complete").touch()
    return directory / "node_modules" / ".bin"
