"""Sets the number of threads of passes in this process."""

import os
import sys
from functools import cache

from specinfer.system.threads import default_threads, thread_count

_VARIABLE = "OMP_NUM_THREADS"
"""Environment variable by which torch, if imported later, gets the same number."""


def use_threads(threads: int) -> None:
    """Set the threads of torch and the kernels; 0: all usable processors."""
    count = thread_count(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
    else:
        os.environ[_VARIABLE] = str(count)
        _of_kernels.cache_clear()


def limit_threads() -> None:
    """Limit torch to the usable processors: by itself it ignores CPU quotas."""
    usable, torch = default_threads(), sys.modules.get("torch")
    if torch is None:
        os.environ.setdefault(_VARIABLE, str(usable))
    elif torch.get_num_threads() > usable:
        torch.set_num_threads(usable)


def pass_threads() -> int:
    """Return the number of threads of a pass in the kernels."""
    torch = sys.modules.get("torch")
    count: int = _of_kernels() if torch is None else torch.get_num_threads()
    return count


@cache
def _of_kernels() -> int:
    return default_threads()
