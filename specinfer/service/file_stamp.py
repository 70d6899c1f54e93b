"""Whether a file is still the one that was read."""

from pathlib import Path
from typing import TypeAlias

FileStamp: TypeAlias = tuple[int, int, int] | None
"""Inode, time of change in ns, size in bytes; None where there is no file."""


def stamp_of(path: Path) -> FileStamp:
    """What differs after a file was written or replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
