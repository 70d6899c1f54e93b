"""Threads of the passes in this process."""

import torch

from specinfer.system.threads import default_threads, thread_count


def use_threads(threads: int) -> None:
    """Have torch and the compiled kernels use this many threads; 0 takes as many as the process may use.

    Raises:
        SettingError: if the machine has fewer processors.
    """
    torch.set_num_threads(thread_count(threads))


def limit_threads() -> None:
    """Lower the number of threads to what the process may use, as torch does not know quotas."""
    usable = default_threads()
    if torch.get_num_threads() > usable:
        torch.set_num_threads(usable)
