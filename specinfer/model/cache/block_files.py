"""Files of stored blocks, which appear whole.

Only their owner may list and read them.
"""

import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

SUFFIX, _UNFINISHED = ".kv", ".tmp"
_UNFINISHED_S = 600.0
"""Age in seconds after which an unfinished file is deleted."""


def list_files(directory: Path) -> list[tuple[int, Path, int]]:
    """Return (time of use in ns, path, bytes) of blocks, oldest first."""
    files = []
    for entry in _found(directory, SUFFIX):
        with suppress(FileNotFoundError):  # deleted by another process
            status = entry.stat(follow_symlinks=False)
            files.append((status.st_mtime_ns, Path(entry.path), status.st_size))
    return sorted(files)


def _found(directory: str | Path, suffix: str, level: int = 2) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files of this suffix, `level` directories below."""
    with (
        suppress(OSError),
        os.scandir(directory) as entries,
    ):  # missing, deleted by another process, or not ours
        for entry in entries:
            if level and entry.is_dir(follow_symlinks=False):
                yield from _found(entry.path, suffix, level - 1)
            elif not level and entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                yield entry


def read_regular(path: Path, size: int) -> bytes:
    """Return a regular file's content; b"" for other files or sizes."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        return file.read() if stat.S_ISREG(status.st_mode) and status.st_size == size else b""


def touch(path: Path, used: int) -> None:
    """Store the time of use (ns) in the file, for later processes."""
    with suppress(OSError):  # the file is another user's, read-only or deleted
        os.utime(path, ns=(used, used))


def delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", path, error)


def delete_unfinished(directory: Path) -> None:
    """Delete old temporary files of processes that ended while writing."""
    for entry in _found(directory, _UNFINISHED):
        with suppress(OSError):
            if time.time() - entry.stat().st_mtime > _UNFINISHED_S:
                os.unlink(entry.path)


def write_whole(path: Path, content: bytes) -> None:
    for folder in (path.parents[2], path.parents[1], path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=_UNFINISHED, delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
