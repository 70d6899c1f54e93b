"""Choose the number of a model's threads; lower background threads' priority.

The number follows affinity and the quotas of cgroups. A quota limits processor time, not processors: with
more threads than processor seconds per second, threads wait for each other while the kernel pauses the whole
process. On Linux, passes and the event loop have priority over background threads; elsewhere all threads
have equal priority.
"""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from specinfer.errors import SettingError
from specinfer.system.cgroups import Cgroup, cgroups

THREADS_HELP = "0: as many as affinity and cgroup quotas allow"


def thread_count(threads: int) -> int:
    """Return the number of threads; 0 means all usable processors."""
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
    quotas = [quota for group in cgroups(root, "cpu") if (quota := _quota(group)) is not None]
    return max(1, int(min([affinity or _affinity(), *quotas])))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(group: Cgroup) -> float | None:
    """Return a cgroup's quota in processors; None without a limit."""
    if group.unified:
        words = group.read("cpu.max").split()
    else:
        words = [group.read(f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(map(str.isdecimal, words)):  # "max", -1, no such file
        return None
    quota, period = map(int, words)
    return quota / period if period else None


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
