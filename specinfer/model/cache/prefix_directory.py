"""Blocks of keys and values in files, by the hash of their tokens and of all tokens before them.

A file has a header and the bytes of one block:

    magic (8) | fingerprint (16) | hash (16) | checksum of the bytes (16) | bytes

The fingerprint is that of the model and of the layout of its cache. A file with another one, or whose checksum is
wrong, is left aside with one line in the log. Files appear whole (`os.replace`), so processes may share a directory.
"""

import logging
import os
import tempfile
import time
from collections import OrderedDict
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

log = logging.getLogger(__name__)

_MAGIC = b"SIKV0001"
_SUFFIX, _UNFINISHED = ".kv", ".tmp"
_UNFINISHED_S = 600.0
"""Age in seconds of an unfinished file whose process counts as dead."""
_PARTS = (len(_MAGIC), 16, 16, 16)


class PrefixDirectory:
    """A bounded directory of blocks, of which those unused for longest are deleted. Used by one thread."""

    def __init__(self, directory: Path, fingerprint: str, limit_bytes: int) -> None:
        """Read which blocks are there.

        Args:
            directory: may be missing.
            fingerprint: of everything that decides the bytes of a block.
            limit_bytes: bytes of all files, those of other fingerprints included.
        """
        self._fingerprint = blake2b(fingerprint.encode(), digest_size=16).digest()
        self._directory, self._limit = directory, limit_bytes
        self._sizes: OrderedDict[Path, int] = OrderedDict()
        self._total = 0
        self._left_aside: set[Path] = set()
        self._failed = False
        _delete_unfinished(directory)
        for path, size in _files(directory):
            self._sizes[path] = size
            self._total += size
        self.read_blocks = 0
        """Blocks that were read since the start."""
        self.written_blocks = 0
        """Blocks that were written since the start."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return self._total

    def __contains__(self, key: bytes) -> bool:
        """Return whether there is a file for a block; its content is checked when it is read."""
        path = self._path(key)
        return path in self._sizes and path not in self._left_aside

    def read(self, key: bytes, size: int) -> bytes | None:
        """Return the bytes of a block; None if there are none that can be used."""
        path = self._path(key)
        if key not in self:
            return None
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
            self._leave_aside(path, "torn, or of another model or format")
            return None
        with suppress(OSError):  # another user's file, or one that may only be read
            os.utime(path)
        self._sizes.move_to_end(path)
        self.read_blocks += 1
        return data

    def write(self, key: bytes, data: bytes) -> None:
        """Write a block that is not there; a directory that cannot be written is logged once."""
        if key in self:
            return
        path, content = self._path(key), self._header(key, data) + data
        try:
            _write_whole(path, content)
        except OSError as error:
            if not self._failed:
                log.warning("prefix_cache_directory = %s: cannot be written: %s", self._directory, error)
            self._failed = True
            return
        self._failed = False
        self._left_aside.discard(path)
        self._forget(path)
        self._sizes[path] = len(content)
        self._total += len(content)
        self.written_blocks += 1
        self._delete_oldest()

    def _delete_oldest(self) -> None:
        while self._total > self._limit and self._sizes:
            path = next(iter(self._sizes))
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s: cannot be deleted: %s", path, error)
            self._forget(path)

    def _forget(self, path: Path) -> None:
        self._total -= self._sizes.pop(path, 0)

    def _leave_aside(self, path: Path, reason: str) -> None:
        log.warning("%s: left aside: %s", path, reason)
        self._left_aside.add(path)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._directory / self._fingerprint.hex() / name[:2] / (name + _SUFFIX)

    def _header(self, key: bytes, data: bytes) -> bytes:
        checksum = blake2b(data, digest_size=16).digest()
        return _MAGIC + self._fingerprint + key + checksum


def _files(directory: Path) -> list[tuple[Path, int]]:
    """Return all blocks with their sizes, those unused for longest first."""
    found = []
    for path in directory.glob(f"*/*/*{_SUFFIX}"):
        try:
            status = path.stat()
        except FileNotFoundError:  # deleted by another process
            continue
        found.append((status.st_mtime_ns, path, status.st_size))
    return [(path, size) for _, path, size in sorted(found)]


def _delete_unfinished(directory: Path) -> None:
    """Delete files of processes that ended while they wrote."""
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
