"""Helpers of quantisation: sums for scale searches, threads, rounding."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from specinfer.system.threads import default_threads

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_WEIGHTS_AT_ONCE = 1 << 18
"""Maximum weights of a piece: bounds memory and the threads' waits."""


def in_pieces(x: Floats, row_bytes: int, quantise: Callable[[Floats], Bytes]) -> Bytes:
    """Quantise x [N, K] to rows [N, row_bytes], with all threads."""
    out = np.empty((len(x), row_bytes), np.uint8)
    step = max(1, _WEIGHTS_AT_ONCE // x.shape[1])

    def put(start: int) -> None:
        piece = np.ascontiguousarray(x[start : start + step], np.float32)
        out[start : start + step] = quantise(piece).reshape(len(piece), row_bytes)

    with ThreadPoolExecutor(default_threads()) as pool:
        list(pool.map(put, range(0, len(x), step)))
    return out


def grouped(x: Floats, length: int) -> Floats:
    """Return rows as groups [length, groups], for vectorised sums."""
    return np.ascontiguousarray(x.reshape(-1, length).T)


def importance(x: Floats) -> Floats:
    """Return error weights: large numbers matter more in products."""
    weight = np.abs(x)
    weight += np.sqrt(sum_products(x, x) / np.float32(len(x)))
    return weight


def sum_products(*factors: Floats) -> Floats:
    """Return the sums over groups of products of [weights, groups]."""
    sums: Floats = np.einsum(",".join(["ij"] * len(factors)) + "->j", *factors)
    return sums


def inverse_of(x: Floats) -> Floats:
    """Return 1 / x, and 0 for 0."""
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)


def to_half(x: Floats) -> NDArray[np.float16]:
    """Return numbers as float16; larger ones become the largest finite float16."""
    return np.clip(x, -65504, 65504).astype(np.float16)


def half_bytes(x: NDArray[np.float16]) -> Bytes:
    """Return [N] float16 as bytes [N, 2]."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(-1, 2)
