"""A disk that takes so many bytes of a write and then none, for the files of `specinfer.system.append_file`."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specinfer.system import append_file


class FullDisk:
    """Fails writes where it is told to."""

    def __init__(self) -> None:
        self.room: int | None = None
        """Bytes that it still takes; None: any number."""
        self.cuts = True
        """False: files cannot be cut off either, as when a network's disk is gone."""

    def pwrite(self, file: int, data: memoryview, place: int) -> int:
        """Write as `os.pwrite` does."""
        if self.room is None:
            return _pwrite(file, data, place)
        part = data[: min(self.room, len(data))]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(part)
        return _pwrite(file, part, place)

    def ftruncate(self, file: int, size: int) -> None:
        """Cut off as `os.ftruncate` does."""
        if not self.cuts:
            raise OSError(errno.EIO, "Input/output error")
        _ftruncate(file, size)


_pwrite, _ftruncate = os.pwrite, os.ftruncate


@contextmanager
def full_disk() -> Iterator[FullDisk]:
    """Put such a disk under all append-only files."""
    disk = FullDisk()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_file.os, "pwrite", disk.pwrite)
        patch.setattr(append_file.os, "ftruncate", disk.ftruncate)
        yield disk
