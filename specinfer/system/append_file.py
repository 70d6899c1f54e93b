"""Append records to a file, one line each, atomically.

Records survive a crash of the process, not of the machine. A partial record, after a failed write or a killed
process, is removed before the next write or when the file is opened.
"""

import os
from pathlib import Path


def private(path: str | Path, flags: int) -> int:
    """Open a file of callers' texts, as an opener of `open`.

    Only its owner may read a new one.
    """
    return os.open(path, flags, 0o600)


class AppendFile:
    """A file of records without line breaks, private if new."""

    def __init__(self, path: Path) -> None:
        """Open or create a file; remove a partial last record."""
        self._path = path
        self._file = private(path, os.O_RDWR | os.O_CREAT)
        try:
            self.size = _end_of_records(path)
            """Bytes of all complete records."""
            os.ftruncate(self._file, self.size)
        except OSError:
            os.close(self._file)
            raise
        self._torn = False
        """True if a partial record may follow the last complete record."""

    def append(self, record: bytes) -> None:
        """Append a record."""
        data = record + b"\n"
        assert b"\n" not in record
        self._cut_torn_end()
        self._write(data)
        self.size += len(data)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        left, place = memoryview(data), self.size
        self._torn = True
        try:
            while left:
                count = os.pwrite(self._file, left, place)
                left, place = left[count:], place + count
        except OSError:
            self._cut_torn_end()
            raise
        self._torn = False

    def _cut_torn_end(self) -> None:
        if self._torn:
            os.ftruncate(self._file, self.size)
            self._torn = False


def read_records(path: Path) -> tuple[list[bytes], bytes]:
    """Return a file's complete records, and its partial last record or b""."""
    *records, torn = path.read_bytes().split(b"\n")
    return records, torn


def _end_of_records(path: Path) -> int:
    """Return the number of bytes up to the last line break."""
    with path.open("rb") as file:
        place = file.seek(0, os.SEEK_END)
        while place:
            start = max(0, place - 65536)
            file.seek(start)
            newline = file.read(place - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            place = start
    return 0
