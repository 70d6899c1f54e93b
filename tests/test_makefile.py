"""`make` uses the first Python from 3.11 that runs and can create virtual environments."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sh", "make", "test", "grep", "touch", "echo")
SHIM = "echo 'no version chosen' >&2; exit 127"  # the script of a version manager for an inactive version
TOO_OLD = 'case "$2" in *version_info*) exit 1;; *) exit 0;; esac'
USABLE = "exit 0"

Make = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Function that runs `make lint` with only the given interpreters on the PATH."""

    def run(pythons: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
        folder = tmp_path / "bin"
        folder.mkdir()
        for tool in TOOLS:
            if path := shutil.which(tool):
                (folder / tool).symlink_to(path)
        for name, script in pythons.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        command = ["make", f"VENV={tmp_path / 'venv'}", *arguments, "lint"]
        outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON"}  # set by the `make test` that runs this
        environment = {key: text for key, text in os.environ.items() if key not in outer}
        environment["PATH"] = str(folder)
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)

    return run


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3.11": USABLE, "python3.13": USABLE}, "python3.11"),
        ({"python3.11": SHIM, "python3.12": SHIM, "python3.13": USABLE}, "python3.13"),
        ({"python3.14": USABLE, "python3": TOO_OLD}, "python3.14"),
        ({"python3": TOO_OLD, "python": USABLE}, "python"),
    ],
    ids=["first", "shims", "newest", "unversioned"],
)
def test_the_first_usable_python_is_used(make: Make, pythons: dict[str, str], chosen: str) -> None:
    done = make(pythons, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f'"{chosen}" -m venv' in done.stdout


def test_a_given_python_is_used(make: Make) -> None:
    done = make({"python3.11": USABLE, "mine": USABLE}, "--dry-run", "PYTHON=mine")
    assert '"mine" -m venv' in done.stdout


@pytest.mark.parametrize("arguments", [(), ("PYTHON=python3",)], ids=["found", "asked for"])
def test_the_error_without_a_usable_python_names_the_remedy(make: Make, arguments: tuple[str, ...]) -> None:
    done = make({"python3": TOO_OLD, "python3.12": SHIM}, *arguments)
    assert done.returncode == 2
    assert "needs Python 3.11 or newer" in done.stderr
    assert "PYTHON=/path/to/python" in done.stderr
    assert "-m venv" not in done.stdout
