"""Announce the running servers of this user, so that commands find them.

A server keeps a locked record in the cache directory. A record without a lock is of a process that has ended.
"""

import fcntl
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from specinfer.system.cache_directory import cache_directory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningServer:
    command: str
    """Command that started the server: serve or up."""
    address: str
    """gRPC address of the gateway."""
    url: str
    """Base URL of the HTTP API; empty without one."""
    pid: int
    started: float
    """Seconds since 1970."""


def _folder() -> Path:
    return cache_directory() / "running"


@contextmanager
def announced(command: str, address: str, url: str) -> Iterator[None]:
    """Announce this process as a server; if the cache is read-only, only log this."""
    server = RunningServer(command, address, url, os.getpid(), time.time())
    path = _folder() / f"{server.pid}-{secrets.token_hex(4)}"  # containers may have equal process ids
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("x")
    except OSError as error:
        log.warning("`specinfer status` will not find this server: %s: %s", path, error.strerror)
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(asdict(server), file)
        file.flush()
        path = path.rename(path.with_suffix(".json"))  # only now do others read it
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running_servers() -> list[RunningServer]:
    """Return this user's running servers, oldest first; delete records of ended ones."""
    found = [server for path in _folder().glob("*.json") if (server := _read(path)) is not None]
    return sorted(found, key=lambda server: server.started)


def _read(path: Path) -> RunningServer | None:
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ValueError, TypeError):  # of another version
                return RunningServer(**json.load(file))
        else:
            path.unlink(missing_ok=True)
    return None


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants, in bytes; 0 without /proc."""
    total = 0
    with suppress(OSError, ValueError):
        total = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            total += sum(map(resident_bytes, map(int, task.read_text().split())))
    return total
