"""Threads of the passes in this process."""

import torch

from specinfer.system.threads import default_threads, thread_count


def use_threads(threads: int) -> None:
    """Set the threads of torch and the kernels; 0: all usable.

    Raises:
        SettingError: if the machine has fewer processors.
    """
    torch.set_num_threads(thread_count(threads))


def limit_threads() -> None:
    """Limit torch's threads to usable processors, as it ignores quotas."""
    usable = default_threads()
    if torch.get_num_threads() > usable:
        torch.set_num_threads(usable)
