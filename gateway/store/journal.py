"""Write an embedded store's changes to its file."""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.store.stored_request import Line, RecordReader, StoredRequest, to_record
from specinfer.errors import SettingError, UnavailableError
from specinfer.system.append_file import AppendFile, private, read_records

log = logging.getLogger(__name__)
_SMALL = 1 << 20
"""Bytes up to which a file is never rewritten."""


class Journal:
    """File of a store; rewritten without removed requests after doubling in size.

    PATH.lock is locked while the file is open, so that no second process replaces it.
    """

    def __init__(self, path: Path, entries: dict[str, StoredRequest], now: float, oldest: float) -> None:
        """Read the file into `entries`, except requests that ended before `oldest`."""
        path = path.resolve()  # a link's target, so that the lock is next to the file
        self._path, self._entries = path, entries
        with ExitStack() as closing:
            try:
                if not path.parent.is_dir():
                    raise OSError(f"make its folder first, for you alone: mkdir -m 700 {path.parent}")
                if path.exists() and not path.is_file():  # rewriting would replace a device by a file
                    raise OSError("must be a regular file")
                lock = closing.enter_context(open(path.with_name(f"{path.name}.lock"), "a", opener=private))
                os.fchmod(lock.fileno(), 0o600)  # older versions let any user lock it
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read_all(now, oldest)
                self._file = AppendFile(path)
            except BlockingIOError as error:
                raise SettingError(
                    "store", str(path), "in use by another process; choose another file"
                ) from error
            except (OSError, ValueError) as error:
                raise SettingError("store", str(path), f"cannot be used: {error}") from error
            self._locked = closing.pop_all()
        self._rewrite()

    def shorten(self) -> None:
        """Rewrite the file if its size has doubled since the last rewriting."""
        if self._file.size >= max(_SMALL, 2 * self._size):
            self._rewrite()

    def write(self, lines: Sequence[Line]) -> None:
        """Write all lines as one record; after a failure, none is written."""
        if lines:
            with _unavailable(self._path):
                self._file.append(to_record(lines))

    def check(self) -> None:
        """Check that a write would succeed now, if the latest write failed."""
        with _unavailable(self._path):
            self._file.check()

    def close(self) -> None:
        """Close the file, and release its lock."""
        self._file.close()
        self._locked.close()

    def _read_all(self, now: float, oldest: float) -> None:
        if not self._path.exists():
            return
        reader = RecordReader(self._entries, now)
        reader.read(*read_records(self._path))
        if reader.left_out:
            log.warning(
                "store = %s: %d damaged lines are ignored; their requests continue from the tokens before",
                *(self._path, reader.left_out),
            )
        for name, entry in list(self._entries.items()):
            if entry.ending is not None and entry.ended < oldest:
                del self._entries[name]

    def _rewrite(self) -> None:
        """Rewrite the file with all current requests; keep it on failure."""
        try:
            self._file.replace(to_record(entry.all_lines()) for entry in self._entries.values())
        except OSError as error:
            log.warning("store = %s: the file cannot be shortened and keeps growing: %s", self._path, error)
        self._size = self._file.size
        """Bytes of the file after the latest attempt at rewriting."""


@contextmanager
def _unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"the store's file {path} cannot be written: {error.strerror or error}"
        ) from error
