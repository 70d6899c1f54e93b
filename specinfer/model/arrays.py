"""Handles tensors of torch and arrays of numpy alike.

With a GGUF file and the compiled kernels, all arrays are numpy's, and torch is not loaded.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specinfer.model.lazy_torch import torch

Array: TypeAlias = "torch.Tensor | NDArray[Any]"


def as_floats(values: Array) -> NDArray[np.float32]:
    """Return numbers as contiguous float32 in numpy, on the host."""
    if not isinstance(values, np.ndarray):
        values = values.float().cpu().numpy()
    return np.ascontiguousarray(values, np.float32)


def as_ids(values: Array) -> NDArray[np.int32]:
    """Return token ids as contiguous int32 in numpy; they are copied if needed."""
    array = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return np.ascontiguousarray(array, np.int32)


def as_tensor(values: Array) -> torch.Tensor:
    """Return a tensor of the numbers, in the same memory."""
    return torch.from_numpy(values) if isinstance(values, np.ndarray) else values


def like(array: NDArray[Any], other: Array) -> Any:
    """Return an array, as a tensor if `other` is one."""
    return array if isinstance(other, np.ndarray) else torch.from_numpy(array)


def stored_as(values: Array, dtype: str) -> Array:
    """Return numbers contiguously in a type; bfloat16 in numpy is its bits, rounded to even."""
    if not isinstance(values, np.ndarray):
        return values.to(getattr(torch, dtype)).contiguous()
    floats = as_floats(values)
    if dtype == "float32":
        return floats
    bits = floats.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def contiguous(values: Array) -> Array:
    """Return numbers in the order of their memory; copied if they are in another."""
    return np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values.contiguous()


def address(values: Array) -> int:
    """Return the address of contiguous numbers, which must stay in memory."""
    return int(values.ctypes.data if isinstance(values, np.ndarray) else values.data_ptr())
