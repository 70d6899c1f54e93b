"""Simulate a disk that becomes full during a write, for files of `specinfer.system.atomic_files`."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specinfer.system import atomic_files


class FullDisk:
    """Replacements of `os` functions that fail on a full disk."""

    def __init__(self) -> None:
        self.room: int | None = None
        """Bytes of free space; None: unlimited."""
        self.cuts = True
        """False: files cannot be truncated either, as on a disconnected network disk."""

    def pwrite(self, file: int, data: memoryview, place: int) -> int:
        """Replace `os.pwrite`."""
        if self.room is None:
            return _pwrite(file, data, place)
        part = data[: min(self.room, len(data))]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(part)
        return _pwrite(file, part, place)

    def ftruncate(self, file: int, size: int) -> None:
        """Replace `os.ftruncate`."""
        if not self.cuts:
            raise OSError(errno.EIO, "Input/output error")
        _ftruncate(file, size)


_pwrite, _ftruncate = os.pwrite, os.ftruncate


@contextmanager
def full_disk() -> Iterator[FullDisk]:
    """Make all append-only files use a simulated disk."""
    disk = FullDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_files.os, "pwrite", disk.pwrite)
        patch.setattr(atomic_files.os, "ftruncate", disk.ftruncate)
        yield disk
