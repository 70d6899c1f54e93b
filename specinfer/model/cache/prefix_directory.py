"""Stores blocks of keys and values in files, named by prefix hash.

A file has a header and the bytes of one block:

    magic (8) | fingerprint (16) | hash (16) | checksum of the bytes (16) | bytes

The hash covers a block's tokens and all tokens before. The fingerprint covers the model and the layout of its cache.
A file with another fingerprint or a wrong checksum is ignored and logged. Files appear whole (`os.replace`), so
processes may share a directory. A thread writes and deletes files: a block takes milliseconds, and a prompt may
evict hundreds of blocks in one step.
"""

import logging
import os
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

log = logging.getLogger(__name__)

_MAGIC = b"SIKV0001"
_SUFFIX, _UNFINISHED = ".kv", ".tmp"
_BACKLOG_BYTES = 1 << 28
"""Maximum bytes of blocks queued for the disk."""
_UNFINISHED_S = 600.0
"""Age in seconds after which an unfinished file is deleted."""
_PARTS = (len(_MAGIC), 16, 16, 16)


class PrefixDirectory:
    """A directory of blocks, limited in size. Not thread-safe.

    The least recently used files are deleted first.
    """

    def __init__(self, directory: Path, fingerprint: str, limit_bytes: int) -> None:
        """List the directory's blocks.

        Args:
            directory: created with the first block if missing.
            fingerprint: fingerprint of model, cache type and block layout.
            limit_bytes: maximum bytes of all files, including files of other fingerprints.
        """
        self._fingerprint = blake2b(fingerprint.encode(), digest_size=16).digest()
        self._directory, self._limit = directory, limit_bytes
        self._sizes: OrderedDict[Path, int] = OrderedDict()
        self._total = 0
        self._excluded: set[Path] = set()
        self._failed = False
        self._writer = ThreadPoolExecutor(1, "prefixes")
        self._tasks: deque[tuple[Path, Future[None]]] = deque()
        """Queued writes: path of the file, and the writer thread's task."""
        self._pending: dict[Path, bytes] = {}
        """Content of the queued files."""
        _delete_unfinished(directory)
        self._latest = 0
        """Time of the latest use in nanoseconds, strictly increasing."""
        for used, path, size in _files(directory):
            self._sizes[path] = size
            self._total += size
            self._latest = used
        self.read_blocks = 0
        """Number of blocks read since the start."""
        self.written_blocks = 0
        """Number of blocks written since the start."""

    @property
    def total_bytes(self) -> int:
        return self._total

    def __contains__(self, key: bytes) -> bool:
        """Return whether a block has a file that seems usable."""
        self._collect()
        path = self._path(key)
        return path in self._sizes and path not in self._excluded

    def read(self, key: bytes, size: int) -> bytes | None:
        """Return a block's `size` bytes; None if its file is unusable."""
        path = self._path(key)
        if key not in self:
            return None
        if path in self._pending:
            return self._pending[path]
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # deleted by another process
            self._forget(path)
            return None
        except OSError as error:
            self._exclude(path, str(error))
            return None
        header, data = content[: sum(_PARTS)], content[sum(_PARTS) :]
        if header != self._header(key, data) or len(data) != size:
            self._exclude(path, "the file is damaged, or belongs to another model or format")
            return None
        self.read_blocks += 1
        return data

    def note_use(self, keys: Sequence[bytes]) -> None:
        """Update the time of use of a prompt's blocks.

        The first block gets the latest time: later blocks are useless without it.
        """
        for path in map(self._path, reversed(keys)):
            if path in self._sizes:
                self._sizes.move_to_end(path)
                self._writer.submit(_touch, path, self._now())

    def write(self, key: bytes, data: bytes, wait: bool = False) -> None:
        """Queue a block for writing, unless it has a file.

        Args:
            wait: wait for the disk if the queue is full. Otherwise the oldest queued blocks are dropped: the cache
                evicts a prompt's last blocks first, and they are worth least.
        """
        if key in self:
            return
        if wait and self._pending_bytes + len(data) > _BACKLOG_BYTES:
            self.flush()
        while self._pending and self._pending_bytes + len(data) > _BACKLOG_BYTES:
            if not self._cancel_oldest():
                return
        path = self._path(key)
        self._excluded.discard(path)
        self._forget(path)
        self._sizes[path] = sum(_PARTS) + len(data)
        self._total += self._sizes[path]
        self._pending[path] = data
        self._tasks.append((path, self._writer.submit(self._write, path, key, data, self._now())))
        self._delete_oldest()

    @property
    def _pending_bytes(self) -> int:
        return sum(map(len, self._pending.values()))

    def _cancel_oldest(self) -> bool:
        """Cancel the oldest write that has not begun; False if none."""
        for place, (path, task) in enumerate(self._tasks):
            if task.cancel():
                del self._tasks[place]
                self._pending.pop(path, None)
                self._forget(path)
                return True
        return False

    def flush(self) -> None:
        """Wait until all queued blocks are written and deletions are done."""
        for _, task in self._tasks:
            task.exception()
        self._writer.submit(lambda: None).result()  # deletions
        self._collect()

    def _now(self) -> int:
        self._latest = max(self._latest + 1, time.time_ns())
        return self._latest

    def _write(self, path: Path, key: bytes, data: bytes, used: int) -> None:
        """Write a block's file; runs in the writer thread."""
        _write_whole(path, self._header(key, data) + data)
        _touch(path, used)

    def _collect(self) -> None:
        """Remove finished writes from the queue; log an error."""
        while self._tasks and self._tasks[0][1].done():
            path, task = self._tasks.popleft()
            if not any(path == other for other, _ in self._tasks):
                self._pending.pop(path, None)
            error = task.exception()
            if error is None:
                self.written_blocks += 1
            else:
                self._forget(path)
                if not self._failed:
                    log.warning("prefix_cache_directory = %s: cannot be written: %s", self._directory, error)
            self._failed = error is not None

    def _delete_oldest(self) -> None:
        while self._total > self._limit and self._sizes:
            path = next(iter(self._sizes))
            self._writer.submit(_delete, path)
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._total -= self._sizes.pop(path, 0)

    def _exclude(self, path: Path, reason: str) -> None:
        log.warning("%s: this cached prefix is not used: %s", path, reason)
        self._excluded.add(path)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._directory / self._fingerprint.hex() / name[:2] / (name + _SUFFIX)

    def _header(self, key: bytes, data: bytes) -> bytes:
        checksum = blake2b(data, digest_size=16).digest()
        return _MAGIC + self._fingerprint + key + checksum


def _files(directory: Path) -> list[tuple[int, Path, int]]:
    """Return (time of use in ns, path, bytes) of blocks, oldest first."""
    files = []
    for path in directory.glob(f"*/*/*{_SUFFIX}"):
        try:
            status = path.stat()
        except FileNotFoundError:  # deleted by another process
            continue
        files.append((status.st_mtime_ns, path, status.st_size))
    return sorted(files)


def _touch(path: Path, used: int) -> None:
    """Store the time of use (ns) in the file, for later processes."""
    with suppress(OSError):  # the file is another user's, read-only or deleted
        os.utime(path, ns=(used, used))


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", path, error)


def _delete_unfinished(directory: Path) -> None:
    """Delete old temporary files of processes that ended while writing."""
    for path in directory.glob(f"*/*/*{_UNFINISHED}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNFINISHED_S:
                path.unlink()


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=_UNFINISHED, delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
