"""Choose the number of a model's threads; lower background threads' priority.

The number follows affinity and the quotas of cgroups. A quota limits processor time, not processors: with
more threads than processor seconds per second, threads wait for each other while the kernel pauses the whole
process. On Linux, passes and the event loop have priority over background threads; elsewhere all threads
have equal priority.
"""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from specinfer.errors import SettingError

THREADS_HELP = "0: as many as affinity and cgroup quotas allow"


class _Mount(NamedTuple):
    """A mounted hierarchy of cgroups."""

    root: PurePosixPath
    """The cgroup at the mount point."""
    point: Path
    unified: bool
    """True for cgroup v2."""


def thread_count(threads: int) -> int:
    """Return the number of threads; 0 means all usable processors.

    Raises:
        SettingError: if `threads` is below 0 or above the machine's processors.
    """
    limit = os.cpu_count() or 1
    if not 0 <= threads <= limit:
        raise SettingError(
            "threads",
            threads,
            f"must be 1 to {limit}, the processors of this machine, or 0 for all usable ones",
        )
    return threads or default_threads()


def default_threads() -> int:
    """Return the lower of `usable_processors` and OMP_NUM_THREADS."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    usable = usable_processors()
    return min(int(given), usable) if given.isdecimal() and int(given) else usable


def usable_processors(root: Path = Path("/"), affinity: int | None = None) -> int:
    """Return the lower of CPU affinity and cgroup quotas, at least 1.

    Args:
        root: directory that contains `proc` and `sys`.
        affinity: number of processors on which this process may run; None: read from the system.
    """
    quotas = [int(quota) for quota in _quotas(root)]
    return max(1, min([affinity or _affinity(), *quotas]))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas of this process's cgroups and their ancestors, in processors."""
    for mount in _mounts(root):
        group = _own_group(root, mount.unified)
        if group is None:
            continue
        inside = group.relative_to(mount.root) if group.is_relative_to(mount.root) else PurePosixPath()
        if ".." in inside.parts:  # the group is outside the cgroup namespace
            inside = PurePosixPath()
        for part in (inside, *inside.parents):
            quota = _quota(mount.point / part, mount.unified)
            if quota is not None:
                yield quota


def _mounts(root: Path) -> Iterator[_Mount]:
    """Yield the mounted cgroup hierarchies that limit processor time."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        place, _, kind = line.partition(" - ")
        fields, types = place.split(), kind.split()
        if len(fields) < 5 or len(types) < 3:
            continue
        unified = types[0] == "cgroup2"
        if unified or (types[0] == "cgroup" and "cpu" in types[2].split(",")):
            yield _Mount(PurePosixPath(fields[3]), root / fields[4].lstrip("/"), unified)


def _own_group(root: Path, unified: bool) -> PurePosixPath | None:
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if unified else "cpu" in controllers.split(","):
            return PurePosixPath(path)
    return None


def _quota(group: Path, unified: bool) -> float | None:
    """Return a cgroup's quota in processors; None without a limit."""
    if unified:
        words = _read(group / "cpu.max").split()
    else:
        words = [_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(map(str.isdecimal, words)):  # "max", -1, no such file
        return None
    quota, period = map(int, words)
    return quota / period if period else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # missing, or not readable
        return ""


LATER, LAST = 10, 19
"""Niceness of background work: awaited by requests, and not awaited."""


def give_way(niceness: int) -> None:
    """Set this thread's niceness on Linux, if permitted."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def background_threads(threads: int, name: str, niceness: int = LATER) -> ThreadPoolExecutor:
    """Return a pool of threads with low priority."""
    return ThreadPoolExecutor(threads, name, give_way, (niceness,))
