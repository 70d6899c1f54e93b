"""Has functions that all quantisers share: sums, rounding, threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from specinfer.system.threads import default_threads

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_WEIGHTS_AT_ONCE = 1 << 18
"""Maximum weights per task of a thread; limits temporary memory."""


def in_pieces(x: Floats, row_bytes: int, quantise: Callable[[Floats], Bytes]) -> Bytes:
    """Quantise x [N, K] to rows of bytes [N, row_bytes], in parallel."""
    out = np.empty((len(x), row_bytes), np.uint8)
    step = max(1, _WEIGHTS_AT_ONCE // x.shape[1])

    def put(start: int) -> None:
        piece = np.ascontiguousarray(x[start : start + step], np.float32)
        out[start : start + step] = quantise(piece).reshape(len(piece), row_bytes)

    with ThreadPoolExecutor(default_threads()) as pool:
        list(pool.map(put, range(0, len(x), step)))
    return out


def grouped(x: Floats, length: int) -> Floats:
    """Return groups as columns, [length, groups], for vectorised sums."""
    return np.ascontiguousarray(x.reshape(-1, length).T)


def importance(x: Floats) -> Floats:
    """Return a weight for each number's squared error; large numbers count more."""
    weight = np.abs(x)
    weight += np.sqrt(sum_products(x, x) / np.float32(len(x)))
    return weight


def sum_products(*factors: Floats) -> Floats:
    """Return [groups], the sums of products of factors [weights, groups]."""
    sums: Floats = np.einsum(",".join(["ij"] * len(factors)) + "->j", *factors)
    return sums


def inverse_of(x: Floats) -> Floats:
    """Return 1 / x; 0 where x is 0."""
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)


def to_half(x: Floats) -> NDArray[np.float16]:
    """Return float16 numbers; too large ones become the largest finite number."""
    return np.clip(x, -65504, 65504).astype(np.float16)


def half_bytes(x: NDArray[np.float16]) -> Bytes:
    """Return [N] float16 as bytes [N, 2]."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1, 2)
