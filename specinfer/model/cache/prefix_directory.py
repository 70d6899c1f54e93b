"""Stores blocks of keys and values in files, named by prefix hash.

A file has a header and the bytes of one block:

    magic (8) | fingerprint (16) | hash (16) | checksum of the bytes (16) | bytes

The hash covers a block's tokens and all tokens before. The fingerprint covers the model and the layout of its cache.
A file with another fingerprint or a wrong checksum is ignored and logged. Files appear whole (`os.replace`), so
processes may share a directory; each lists it again after writing a twentieth of the limit. Names reveal whether a
prompt was used, so only the owner may list them. A thread writes and deletes files: a block takes milliseconds, and a
prompt may evict hundreds of blocks in one step.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from specinfer.model.cache.block_files import (
    SUFFIX,
    delete,
    delete_unfinished,
    list_files,
    read_regular,
    touch,
    write_whole,
)

log = logging.getLogger(__name__)

_MAGIC = b"SIKV0001"
_BACKLOG_BYTES = 1 << 28
"""Maximum bytes of blocks queued for the disk."""
_PARTS = (len(_MAGIC), 16, 16, 16)
_LISTED_AFTER = 20
"""Files are listed again after writing this part of the limit."""


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
        self._chores: dict[Path, int | None] = {}
        """Files to delete (None), or to give this time of use (ns)."""
        self._chore: Future[None] | None = None
        self._list: Future[list[tuple[int, Path, int]]] | None = None
        """Task that lists the directory, until its result is used."""
        self._unlisted = 0
        """Bytes queued since the directory was listed."""
        self._dropped: set[Path] = set()
        """Files deleted since the list was queued."""
        self._used: dict[Path, int] = {}
        """Times of use (ns) that files may not have yet."""
        with suppress(OSError):  # made by an older version; missing, or another user's
            (directory / self._fingerprint.hex()).chmod(0o700)
        delete_unfinished(directory)
        self._latest = 0
        """Time of the latest use in nanoseconds, strictly increasing."""
        self._merge(list_files(directory))
        self.read_blocks = 0
        self.written_blocks = 0

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
            content = read_regular(path, sum(_PARTS) + size)
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
                self._queue_chore(path, self._now())

    def _queue_chore(self, path: Path, used: int | None) -> None:
        self._chores[path] = used
        if used is not None:
            self._used[path] = used
        if self._chore is None or self._chore.done():  # at most one task waits, however slow the disk is
            self._chore = self._writer.submit(self._do_chores)

    def _do_chores(self) -> None:
        """Delete files and store times of use; runs in the writer thread."""
        while self._chores:
            path, used = self._chores.popitem()
            if used is None:
                delete(path)
            else:
                touch(path, used)

    def write(self, key: bytes, data: bytes, wait: bool = False) -> None:
        """Queue a block for writing, unless it has a file.

        Args:
            wait: wait for the disk if the queue is full. Otherwise the oldest queued blocks are dropped: the cache
                evicts a prompt's last blocks first, and they are worth least.
        """
        if key in self:
            return
        backlog = min(_BACKLOG_BYTES, self._limit)
        if wait and self._pending_bytes + len(data) > backlog:
            self._wait()
        while self._pending and self._pending_bytes + len(data) > backlog:
            if not self._cancel_oldest():
                return
        path = self._path(key)
        self._excluded.discard(path)
        self._chores.pop(path, None)
        self._forget(path)
        self._sizes[path] = sum(_PARTS) + len(data)
        self._total += self._sizes[path]
        self._pending[path] = data
        self._tasks.append((path, self._writer.submit(self._write, path, key, data, self._now())))
        self._unlisted += self._sizes[path]
        if self._unlisted > self._limit // _LISTED_AFTER and self._list is None:
            self._queue_list()
        self._delete_oldest()

    def _queue_list(self) -> None:
        self._list, self._unlisted = self._writer.submit(list_files, self._directory), 0
        self._dropped.clear()

    def _merge(self, found: Sequence[tuple[int, Path, int]]) -> None:
        """Set the known files: the found ones and the queued ones."""
        queued = {path: self._sizes[path] for path, _ in self._tasks if path in self._sizes}
        kept = sorted(
            (max(when, self._used.get(path, 0)), path, size)
            for when, path, size in found
            if path not in queued and path not in self._dropped
        )
        self._sizes = OrderedDict((path, size) for _, path, size in kept) | queued
        self._total = sum(self._sizes.values())
        self._latest = max([self._latest, *(when for when, _, _ in kept[-1:])])

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
        self._wait()
        self._queue_list()
        self._wait()
        self._wait()  # for deletions that the list led to

    def _wait(self) -> None:
        self._writer.submit(self._do_chores).result()
        self._collect()

    def _now(self) -> int:
        self._latest = max(self._latest + 1, time.time_ns())
        return self._latest

    def _write(self, path: Path, key: bytes, data: bytes, used: int) -> None:
        """Write a block's file; runs in the writer thread."""
        write_whole(path, self._header(key, data) + data)
        touch(path, used)

    def _collect(self) -> None:
        """Remove finished writes from the queue; use a finished list.

        The first error of several writes is logged.
        """
        if self._list is not None and self._list.done():  # before the queue, which has what the list may lack
            found, self._list = self._list.result(), None
            self._merge(found)
            self._delete_oldest()
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
            self._queue_chore(path, None)
            self._dropped.add(path)
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._total -= self._sizes.pop(path, 0)
        self._used.pop(path, None)

    def _exclude(self, path: Path, reason: str) -> None:
        log.warning("%s: this cached prefix is not used: %s", path, reason)
        self._excluded.add(path)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._directory / self._fingerprint.hex() / name[:2] / (name + SUFFIX)

    def _header(self, key: bytes, data: bytes) -> bytes:
        checksum = blake2b(data, digest_size=16).digest()
        return _MAGIC + self._fingerprint + key + checksum
