"""Declares kernels, and checks the devices that run them.

On a GPU Triton compiles kernels. On a CPU its interpreter runs them thousands of times slower, for tests; it must be
enabled by TRITON_INTERPRET=1 before the process imports triton.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from specinfer.errors import SettingError
from specinfer.system.machine import is_cuda

MIN_CAPABILITY = 8, 0
"""Minimum compute capability for products in bfloat16."""


class Inputs:
    """A pinned array on the host, and its copy on the device."""

    def __init__(self, capacity: int, device: str) -> None:
        """Allocate `capacity` int32 numbers on host and device."""
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        self._copied: Any = None
        if self._cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._host = torch.zeros(capacity, dtype=torch.int32, pin_memory=self._cuda)
        self.numbers = torch.zeros(capacity, dtype=torch.int32, device=self._device)
        """[capacity] int32 on the device."""

    def load(self, numbers: NDArray[np.int32]) -> torch.Tensor:
        """Copy numbers to the device; return the device's array."""
        count = len(numbers)
        if self._copied is not None:
            self._copied.synchronize()  # the previous copy may still read the host's array
        if count > len(self._host):
            return torch.from_numpy(numbers).to(self._device)
        self._host[:count] = torch.from_numpy(numbers)
        self.numbers[:count].copy_(self._host[:count], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return self.numbers


class Kernel(Protocol):
    """`kernel[grid](arguments)` runs one program per point of the grid."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]: ...

    def __call__(self, *arguments: Any) -> Any:
        """Call the kernel from another kernel."""


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile a function in Triton's language as a kernel."""
    made: Kernel = triton.jit(function)
    return made


def unspecialised(*numbers: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator for kernels whose arguments `numbers` vary freely.

    For other arguments, Triton compiles a kernel again when the value becomes 1 or a multiple of 16.
    """
    made: Callable[[Callable[..., Any]], Kernel] = triton.jit(do_not_specialize=list(numbers))
    return made


def interpreted() -> bool:
    return bool(triton.knobs.runtime.interpret)


def _mend_interpreter() -> None:
    """Fix the interpreter of Triton 3.6 and 3.7.

    Its loop bounds are arrays of one number, which numpy 2.4 does not convert to integers.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_mend


if interpreted():
    _mend_interpreter()


def check_device(device: str) -> None:
    """Check that kernels can run on a model's device."""
    if interpreted():
        return
    if not is_cuda(device):
        raise SettingError("device", device, "the gpu executor needs cuda (TRITON_INTERPRET=1 for tests)")
    if torch.version.hip is None and (found := torch.cuda.get_device_capability(device)) < MIN_CAPABILITY:
        numbers = "compute capability {}.{}: the gpu executor needs {}.{}"
        raise SettingError("device", device, numbers.format(*found, *MIN_CAPABILITY))


def current(device: str) -> AbstractContextManager[object]:
    """Make a GPU the thread's current one, which Triton, graphs and events use."""
    return torch.cuda.device(device) if is_cuda(device) else nullcontext()


def processors(device: str) -> int:
    """Return the number of a GPU's multiprocessors; 1 on a CPU."""
    if torch.device(device).type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_bytes(device: str) -> int:
    """Return a program's maximum shared memory in bytes; 0 on a CPU."""
    if torch.device(device).type != "cuda":
        return 0
    properties: Any = torch.cuda.get_device_properties(device)  # its stub lacks the next attribute
    return int(properties.shared_memory_per_block_optin)
