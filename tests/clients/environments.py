"""Environments of clients: what they depend on must not meet what the project depends on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

VARIABLE = "SPECINFER_CLIENT_ENVIRONMENTS"


def environment(name: str, *requirements: str) -> Path:
    """The folder of programs of a virtual environment with these packages, made on first use.

    Skips the test unless the variable names a directory for environments, and where a package cannot be had.
    """
    place = os.environ.get(VARIABLE)
    if not place:
        pytest.skip(f"{VARIABLE} names no directory for clients to be installed in")
    directory = Path(place) / name
    if not (directory / "complete").is_file():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        install = [str(directory / "bin" / "python"), "-m", "pip", "install", "-q", *requirements]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(
                f"{' '.join(requirements)} cannot be installed: {done.stderr.strip().splitlines()[-1]}"
            )
        (directory / "complete").touch()
    return directory / "bin"
