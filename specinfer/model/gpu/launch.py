"""Declaration of kernels, and checks of their devices.

On a GPU Triton compiles them. On a CPU its interpreter runs them, thousands of times slower: that is for
tests, and it has to be enabled by TRITON_INTERPRET=1 before the process imports triton.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from specinfer.errors import SettingError


class Inputs:
    """A pinned array on the host and its copy on the device."""

    def __init__(self, capacity: int, device: str) -> None:
        """Allocate `capacity` int32 numbers, enough for captured passes."""
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        self._copied: Any = None
        if self._cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._host = torch.zeros(capacity, dtype=torch.int32, pin_memory=self._cuda)
        self.numbers = torch.zeros(capacity, dtype=torch.int32, device=self._device)
        """[capacity] int32 on the device."""

    def load(self, numbers: NDArray[np.int32]) -> torch.Tensor:
        """Copy a pass's numbers to the device; return them, [capacity]."""
        count = len(numbers)
        if self._copied is not None:
            self._copied.synchronize()  # the copy before, which may still read the host's array
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
        """Call the kernel from within another kernel."""


def kernel(function: Callable[..., Any]) -> Kernel:
    """Make a kernel of a function in Triton's language."""
    made: Kernel = triton.jit(function)
    return made


def unspecialised(*numbers: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel that is compiled once for all values of these.

    For other arguments it is compiled again if they become one or multiples of sixteen.
    """
    made: Callable[[Callable[..., Any]], Kernel] = triton.jit(do_not_specialize=list(numbers))
    return made


def interpreted() -> bool:
    """Return whether kernels run in the interpreter."""
    return bool(triton.knobs.runtime.interpret)


def _mend_interpreter() -> None:
    """Fix loop bounds in the interpreter of triton 3.6 and 3.7.

    They are arrays of one number there, which numpy 2.4 no longer converts to integers.
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
    """Check that kernels can run on a model's device.

    Raises:
        SettingError: naming the missing part.
    """
    if torch.device(device).type == "cuda" or interpreted():
        return
    raise SettingError("device", device, "the gpu executor needs a GPU (TRITON_INTERPRET=1 for tests)")


def processors(device: str) -> int:
    """Return a device's multiprocessors, which share programs; 1 in the interpreter."""
    if torch.device(device).type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_bytes(device: str) -> int:
    """Return a program's maximum shared memory; 0 in the interpreter."""
    if torch.device(device).type != "cuda":
        return 0
    properties: Any = torch.cuda.get_device_properties(device)  # whose stub lacks this number
    return int(properties.shared_memory_per_block_optin)
