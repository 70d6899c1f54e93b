"""Softmax and Gumbel noise in the compiled kernels."""

import numpy as np
from numpy.typing import NDArray

from specinfer.model.native.build import loaded_library

Float64 = NDArray[np.float64]


def native_softmax(row: NDArray[np.float32], temperature: float) -> Float64 | None:
    """Return softmax(row / temperature) of logits [V]; None without kernels."""
    library = loaded_library()
    if library is None:
        return None
    row = np.ascontiguousarray(row, np.float32)
    p = np.empty(len(row))
    library.si_softmax(row.ctypes.data, len(row), temperature, p.ctypes.data)
    return p


def native_choose(p: NDArray[np.float64], key: int) -> int | None:
    """Return the token that noise chooses from unnormalised p [V].

    None without kernels.

    Raises:
        ValueError: if all probabilities are 0.
    """
    library = loaded_library()
    if library is None:
        return None
    p = np.ascontiguousarray(p, np.float64)
    return _token(library.si_choose(p.ctypes.data, len(p), key))


def native_choose_by_logits(row: NDArray[np.float32], temperature: float, key: int) -> int | None:
    """Return the token that noise chooses from softmax(row / temperature).

    Raises:
        ValueError: if a logit is a NaN or infinite, or all are -infinity.
    """
    library = loaded_library()
    if library is None:
        return None
    row = np.ascontiguousarray(row, np.float32)
    return _token(library.si_choose_by_logits(row.ctypes.data, len(row), temperature, key))


def _token(found: int) -> int:
    if found < 0:
        raise ValueError("p: no token has any probability")
    return found
