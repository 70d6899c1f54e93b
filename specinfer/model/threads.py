"""Sets the number of threads of passes in this process."""

import torch

from specinfer.system.threads import default_threads, thread_count


def use_threads(threads: int) -> None:
    """Set the threads of torch and the kernels; 0: all usable processors."""
    torch.set_num_threads(thread_count(threads))


def limit_threads() -> None:
    """Limit torch to the usable processors: by itself it ignores CPU quotas."""
    usable = default_threads()
    if torch.get_num_threads() > usable:
        torch.set_num_threads(usable)
