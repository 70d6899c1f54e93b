"""Blocks of keys and values in files, by hash of their prefix.

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
    """A bounded directory of blocks (least recently used). For one thread."""

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
        self._left_aside: set[Path] = set()
        self._failed = False
        self._writer = ThreadPoolExecutor(1, "prefixes")
        self._tasks: deque[tuple[Path, Future[None]]] = deque()
        """Files that the thread is to write, in order."""
        self._pending: dict[Path, bytes] = {}
        """Content of these files."""
        _delete_unfinished(directory)
        self._latest = 0
        """Time of the latest use in nanoseconds; strictly rising."""
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
        """Return whether a block has a file; the content is not checked."""
        self._collect()
        path = self._path(key)
        return path in self._sizes and path not in self._left_aside

    def read(self, key: bytes, size: int) -> bytes | None:
        """Return a block's `size` bytes; None without a usable file."""
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
            self._leave_aside(path, str(error))
            return None
        header, data = content[: sum(_PARTS)], content[sum(_PARTS) :]
        if header != self._header(key, data) or len(data) != size:
            self._leave_aside(path, "damaged, or of another model or format")
            return None
        self.read_blocks += 1
        return data

    def note_use(self, keys: Sequence[bytes]) -> None:
        """Count a prompt's blocks as used, the indispensable first blocks last."""
        for path in map(self._path, reversed(keys)):
            if path in self._sizes:
                self._sizes.move_to_end(path)
                self._writer.submit(_touch, path, self._now())

    def write(self, key: bytes, data: bytes, wait: bool = False) -> None:
        """Queue a missing block for writing. An unwritable directory is logged once.

        Args:
            wait: if the queue is full, wait for the disk. Otherwise drop the oldest queued blocks: the cache evicts a
                prompt's last blocks first, and they are worth least.
        """
        if key in self:
            return
        if wait and self._pending_bytes + len(data) > _BACKLOG_BYTES:
            self.flush()
        while self._pending and self._pending_bytes + len(data) > _BACKLOG_BYTES:
            if not self._cancel_oldest():
                return
        path = self._path(key)
        self._left_aside.discard(path)
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
        """Drop the oldest queued block; return whether there was one."""
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
        """Note finished writes, and their errors."""
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

    def _leave_aside(self, path: Path, reason: str) -> None:
        log.warning("%s: this prefix is ignored: %s", path, reason)
        self._left_aside.add(path)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._directory / self._fingerprint.hex() / name[:2] / (name + _SUFFIX)

    def _header(self, key: bytes, data: bytes) -> bytes:
        checksum = blake2b(data, digest_size=16).digest()
        return _MAGIC + self._fingerprint + key + checksum


def _files(directory: Path) -> list[tuple[int, Path, int]]:
    """Return (time of use in ns, path, bytes) of files, oldest first."""
    files = []
    for path in directory.glob(f"*/*/*{_SUFFIX}"):
        try:
            status = path.stat()
        except FileNotFoundError:  # deleted by another process
            continue
        files.append((status.st_mtime_ns, path, status.st_size))
    return sorted(files)


def _touch(path: Path, used: int) -> None:
    """Store the time of use in ns, so that it survives restarts."""
    with suppress(OSError):  # the file is another user's, read-only or deleted
        os.utime(path, ns=(used, used))


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", path, error)


def _delete_unfinished(directory: Path) -> None:
    """Delete old unfinished files, of processes that ended while writing."""
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
