"""Create directories atomically: complete or absent.

A process locks and fills a hidden directory next to the target, then moves it to the target. If the process is killed,
the next process finds the files. Modes follow the umask.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from specinfer.system.progress import progress

LOCK = "lock"


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory, which becomes `target` if no error occurs."""
    with empty_directory(target) as work:
        yield work
        if not (target / "config.json").is_file():  # else another process was faster
            put_in_place(work, target)


@contextmanager
def empty_directory(target: Path) -> Iterator[Path]:
    """Yield an empty directory next to `target`, removed at the end."""
    with partial_directory(target) as work:
        try:
            for left in work.iterdir():  # left by a killed process
                if left.name != LOCK:
                    _remove(left)
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def partial_directory(target: Path) -> Iterator[Path]:
    """Yield the hidden directory of `target`, to one process at a time.

    The directory has the files of an interrupted process.
    """
    work = target.with_name(f".{target.name}.partial")
    with _lock(work, target.name):
        yield work
        if work.is_dir() and {path.name for path in work.iterdir()} <= {LOCK}:  # nothing was fetched
            shutil.rmtree(work, ignore_errors=True)


def put_in_place(work: Path, target: Path) -> None:
    """Replace `target`, which is absent or incomplete, by a complete directory."""
    mode = work.stat().st_mode & 0o777  # follows the umask
    for path in work.rglob("*"):
        if not path.is_symlink():
            path.chmod(mode if path.is_dir() else mode & 0o666)
    shutil.rmtree(target, ignore_errors=True)
    (work / LOCK).unlink()
    os.rename(work, target)


@contextmanager
def _lock(work: Path, name: str) -> Iterator[None]:
    """Create a directory and lock it; wait for other processes."""
    while True:
        work.mkdir(parents=True, exist_ok=True)
        try:
            file = (work / LOCK).open("w")
        except FileNotFoundError:  # another process has just finished
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with progress(f"waiting for another process that pulls {name}"):
                    fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, work / LOCK):
                yield
                return


def _is_at(file: TextIO, path: Path) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
