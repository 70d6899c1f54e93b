"""Calls the compiled kernels for softmax and Gumbel noise.

All functions return None if this process has not loaded the kernels.
"""

import numpy as np
from numpy.typing import NDArray

from specinfer.model.native.build import loaded_library

Float64 = NDArray[np.float64]


def native_softmax(row: NDArray[np.float32], temperature: float) -> Float64 | None:
    """Return softmax(row / temperature) of logits [V]."""
    library = loaded_library()
    if library is None:
        return None
    row = np.ascontiguousarray(row, np.float32)
    p = np.empty(len(row))
    library.si_softmax(row.ctypes.data, len(row), temperature, p.ctypes.data)
    return p


def native_choose(p: NDArray[np.float64], key: int) -> int | None:
    """Return a token chosen by noise, given unnormalised probabilities p [V]."""
    library = loaded_library()
    if library is None:
        return None
    p = np.ascontiguousarray(p, np.float64)
    return _token(library.si_choose(p.ctypes.data, len(p), key))


def native_choose_by_logits(row: NDArray[np.float32], temperature: float, key: int) -> int | None:
    """Return a token chosen by noise from softmax(row / temperature)."""
    library = loaded_library()
    if library is None:
        return None
    row = np.ascontiguousarray(row, np.float32)
    return _token(library.si_choose_by_logits(row.ctypes.data, len(row), temperature, key))


def _token(found: int) -> int:
    if found < 0:
        raise ValueError("p: no token has any probability: all are 0, or a logit is not finite")
    return found
