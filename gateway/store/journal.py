"""The file of an embedded store, written before requests are visible."""

import fcntl
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from gateway.store.stored_request import Line, RecordReader, StoredRequest, to_record
from specinfer.errors import SettingError, UnavailableError
from specinfer.system.append_file import AppendFile, read_records

log = logging.getLogger(__name__)
_SMALL = 1 << 20
"""Files smaller than this (bytes) are not rewritten."""


class Journal:
    """The file of a store, rewritten when opened and after doubling.

    PATH.lock is locked while it is open: a second process would replace this one's file.
    """

    def __init__(self, path: Path, entries: dict[str, StoredRequest], now: float, oldest: float) -> None:
        """Read the file into `entries`, except requests that ended before `oldest`.

        Raises:
            SettingError: if it cannot be read or written, has nothing of a store, or is in use.
        """
        path = path.resolve()  # the lock is next to the file, not next to a link to it
        self._path, self._entries = path, entries
        with ExitStack() as closing:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists() and not path.is_file():  # a file would be put in the place of a device
                    raise OSError("it is no file")
                lock = closing.enter_context(path.with_name(f"{path.name}.lock").open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read_all(now, oldest)
                self._file = AppendFile(path)
            except BlockingIOError as error:
                raise SettingError("store", str(path), "is in use by another process") from error
            except (OSError, ValueError) as error:
                raise SettingError("store", str(path), f"cannot be used: {error}") from error
            self._locked = closing.pop_all()
        self._write_anew()

    def shorten(self) -> None:
        """Rewrite the file without forgotten requests if it has grown much."""
        if self._file.size >= max(_SMALL, 2 * self._size):
            self._write_anew()

    def write(self, lines: Sequence[Line]) -> None:
        """Write lines, all or none.

        Raises:
            UnavailableError: if they cannot be written now.
        """
        if lines:
            with _unavailable():
                self._file.append(to_record(lines))

    def check(self) -> None:
        """Check that the last failed write would succeed now.

        Raises:
            UnavailableError: if not.
        """
        with _unavailable():
            self._file.check()

    def close(self) -> None:
        """Close the file, for others to open."""
        self._file.close()
        self._locked.close()

    def _read_all(self, now: float, oldest: float) -> None:
        if not self._path.exists():
            return
        reader = RecordReader(self._entries, now)
        reader.read(*read_records(self._path))
        if reader.left_out:
            log.warning(
                "store = %s: %d damaged lines are left out; their requests continue from what is before",
                *(self._path, reader.left_out),
            )
        for name, entry in list(self._entries.items()):
            if entry.ending is not None and entry.ended < oldest:
                del self._entries[name]

    def _write_anew(self) -> None:
        """Replace the file by all known requests; keep it on failure."""
        try:
            self._file.replace(to_record(entry.all_lines()) for entry in self._entries.values())
        except OSError as error:
            log.warning("store = %s: not shortened: %s", self._path, error)
        self._size = self._file.size
        """Bytes of the file after its last rewrite, or attempt."""


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"the store's file cannot be written: {error.strerror}") from error
