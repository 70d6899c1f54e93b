"""Choosing a token by noise, in one compiled call (gumbel.h)."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from specinfer.model.native.build import loaded_library


def native_choose(p: NDArray[np.float64], key: int) -> int | None:
    """The token that wins with noise of this key; None where the process runs without the kernels.

    Raises:
        ValueError: if no token has any probability.
    """
    library = loaded_library()
    if library is None:
        return None
    p = np.ascontiguousarray(p, np.float64)
    token: int = library.si_choose(ctypes.c_void_p(p.ctypes.data), len(p), ctypes.c_uint64(key))
    if token < 0:
        raise ValueError("p: no token has any probability")
    return token
