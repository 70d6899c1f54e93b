"""Q4_K and Q5_K: 8 groups of 32 weights with scales and minimums of 6 bits."""

import numpy as np

from specinfer.model.formats.affine import Affine
from specinfer.model.formats.rounding import Bytes, Floats, grouped, half_bytes

FOUR, LOW = np.uint8(4), np.uint8(15)
"""Bits of a nibble, and a mask of the low one."""


def quantise_q4_k(x: Floats) -> Bytes:
    """Return blocks [blocks, 144] of rows."""
    fitted = Affine(grouped(x, 32), 15, 63, 8)
    return np.concatenate([_head(fitted), _nibbles(fitted.codes)], 1)


def quantise_q5_k(x: Floats) -> Bytes:
    """Return blocks [blocks, 176] of rows."""
    fitted = Affine(grouped(x, 32), 31, 63, 8)
    fifth = (fitted.codes >> 4).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(fifth, 1)
    return np.concatenate([_head(fitted), high, _nibbles(fitted.codes & LOW)], 1)


def _head(fitted: Affine) -> Bytes:
    """Return both factors, and scales and minimums: the last four of each are split over the others' top."""
    scales, minimums = fitted.scales, fitted.minimums
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minimums[:, :4] | minimums[:, 4:] >> 4 << 6
    third = scales[:, 4:] & 15 | minimums[:, 4:] << 4
    return np.concatenate([half_bytes(fitted.d), half_bytes(fitted.dmin), first, second, third], 1)


def _nibbles(codes: Bytes) -> Bytes:
    """Return [blocks, 128]: the weights of two groups share bytes."""
    pairs = codes.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << FOUR).reshape(len(codes), -1)
