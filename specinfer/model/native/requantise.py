"""Requantises matrices of GGUF files in the compiled kernels."""

from __future__ import annotations

import numpy as np

from specinfer.model.arrays import address, contiguous, like
from specinfer.model.native.bindings import Storage
from specinfer.model.native.build import loaded_library
from specinfer.model.weights.interfaces import Blocks

_WEIGHTS, _BYTES = 32, 18
"""Weights and bytes of a block of Q4_0."""


def requantised(blocks: Blocks, columns: int) -> Blocks | None:
    """Return a matrix in blocks of Q4_0; None if this process has not loaded the kernels.

    Args:
        blocks: the matrix as stored.
        columns: weights of a row, a multiple of 32.
    """
    library = loaded_library()
    if library is None:
        return None
    storage, rows = Storage[blocks[0]], contiguous(blocks[1])
    quantised = np.empty((len(rows), columns // _WEIGHTS * _BYTES), np.uint8)
    library.si_requantise(storage, address(rows), len(rows), columns, quantised.ctypes.data)
    return "Q4_0", like(quantised, rows)
