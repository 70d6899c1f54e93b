"""The distribution a token is drawn from, in one compiled call (softmax.h)."""

import numpy as np
from numpy.typing import NDArray

from specinfer.model.native.build import loaded_library

Float64 = NDArray[np.float64]


def native_softmax(row: NDArray[np.float32], temperature: float) -> Float64 | None:
    """softmax(row / temperature) of [V] logits; None where the process runs without the kernels."""
    library = loaded_library()
    if library is None:
        return None
    row = np.ascontiguousarray(row, np.float32)
    p = np.empty(len(row))
    library.si_softmax(row.ctypes.data, len(row), temperature, p.ctypes.data)
    return p
