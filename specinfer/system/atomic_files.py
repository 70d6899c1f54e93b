"""Write files atomically: replace a whole file, or append records of one line.

Records survive a crash of the process, not of the machine. A partial record, after a failed write or a killed
process, is removed before the next write or when the file is opened.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def private(path: str | Path, flags: int) -> int:
    """Open a file of callers' texts, as an opener of `open`.

    Only its owner may read a new one.
    """
    return os.open(path, flags, 0o600)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the block a file to write, which then replaces `path`.

    After a failure `path` is as before. One process at a time may write it.
    """
    partial = path.with_name(f".{path.name}.part")
    yield partial
    partial.replace(path)


class AppendFile:
    """A file of records without line breaks, private if new."""

    def __init__(self, path: Path) -> None:
        """Open or create a file; remove a partial last record."""
        self._file = private(path, os.O_RDWR | os.O_CREAT)
        try:
            self.size = _end_of_records(path)
            """Bytes of all complete records."""
            os.ftruncate(self._file, self.size)
        except OSError:
            os.close(self._file)
            raise

    def append(self, record: bytes) -> None:
        """Append a record."""
        assert b"\n" not in record
        left, place = memoryview(record + b"\n"), self.size
        os.ftruncate(self._file, self.size)  # after a failed write, a partial record may be left
        try:
            while left:
                count = os.pwrite(self._file, left, place)
                left, place = left[count:], place + count
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size = place

    def close(self) -> None:
        os.close(self._file)


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
