"""Threads and processes for work that may wait for the processor: passes and the event loop come first.

Linux has priorities of threads; elsewhere all have the same.
"""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

LATER, LAST = 10, 19
"""Niceness of work that somebody waits for, and of work that is dear."""


def give_way(niceness: int) -> None:
    """Lower the priority of this thread, where the system lets it."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def background_threads(threads: int, name: str, niceness: int = LATER) -> ThreadPoolExecutor:
    """Return a pool of threads of low priority."""
    return ThreadPoolExecutor(threads, name, give_way, (niceness,))
