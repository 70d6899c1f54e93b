"""GGUF's K formats: blocks of 256 weights in scaled groups.

Q2_K       16 groups of 16 weights; scales and minimums of 4 bits
Q3_K       16 groups of 16; signed scales of 6 bits
Q4_K Q5_K  8 groups of 32; scales and minimums of 6 bits
Q6_K       16 groups of 16; signed scales of 8 bits
"""

from functools import partial

import numpy as np

from specinfer.model.formats.affine import Affine
from specinfer.model.formats.rounding import Bytes, Floats, grouped, half_bytes
from specinfer.model.formats.symmetric import fit, shared

_FOUR, _LOW = np.uint8(4), np.uint8(15)
_SHARES_OF_THREE = (0.75, 0.85, 0.95, 1.0, 1.05, 1.15)
_SHARES_OF_SIX = (0.96, 0.98, 1.0, 1.02)


def quantise_q2_k(x: Floats) -> Bytes:
    """Return the bytes [blocks, 84] of rows."""
    fitted = Affine(grouped(x, 16), 3, 15, 16)
    scales = fitted.scales | fitted.minimums << 4
    parts = [scales, _pairs_of_bits(fitted.codes), half_bytes(fitted.d), half_bytes(fitted.dmin)]
    return np.concatenate(parts, 1)


def quantise_q3_k(x: Floats) -> Bytes:
    """Return the bytes [blocks, 110] of rows."""
    groups, nearest = grouped(x, 16), partial(_nearest, -4)
    factor, scales, inverse = shared(fit(groups, -4, nearest, _SHARES_OF_THREE), -32, 16)
    codes = np.ascontiguousarray((nearest(groups * inverse) + 4).astype(np.uint8).T).reshape(-1, 256)
    third = (codes >> 2).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    mask = np.bitwise_or.reduce(third, 1)
    parts = [
        mask,
        _pairs_of_bits(codes & np.uint8(3)),
        _six_bits((scales + 32).astype(np.uint8)),
        half_bytes(factor),
    ]
    return np.concatenate(parts, 1)


def quantise_q4_k(x: Floats) -> Bytes:
    """Return the bytes [blocks, 144] of rows."""
    fitted = Affine(grouped(x, 32), 15, 63, 8)
    return np.concatenate([_head(fitted), _nibbles(fitted.codes)], 1)


def quantise_q5_k(x: Floats) -> Bytes:
    """Return the bytes [blocks, 176] of rows."""
    fitted = Affine(grouped(x, 32), 31, 63, 8)
    fifth = (fitted.codes >> 4).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(fifth, 1)
    return np.concatenate([_head(fitted), high, _nibbles(fitted.codes & _LOW)], 1)


def quantise_q6_k(x: Floats) -> Bytes:
    """Return the bytes [blocks, 210] of rows."""
    groups, nearest = grouped(x, 16), partial(_nearest, -32)
    factor, scales, inverse = shared(fit(groups, -32, nearest, _SHARES_OF_SIX), -128, 16)
    codes = np.ascontiguousarray((nearest(groups * inverse) + 32).astype(np.uint8).T)
    runs = codes.reshape(-1, 2, 4, 32)  # two halves of each block
    low = runs & 15
    nibbles = low[:, :, :2] | low[:, :, 2:] << 4
    high = np.bitwise_or.reduce(runs >> 4 << np.arange(0, 8, 2, dtype=np.uint8)[:, None], 2)
    blocks = len(factor)
    parts = [nibbles.reshape(blocks, 128), high.reshape(blocks, 64), scales.astype(np.int8).view(np.uint8)]
    return np.concatenate([*parts, half_bytes(factor)], 1)


def _nearest(least: int, x: Floats) -> Floats:
    """Round in place, and clip to `least` .. `-least - 1`."""
    return np.clip(np.rint(x, out=x), least, -least - 1, out=x)


def _pairs_of_bits(codes: Bytes) -> Bytes:
    """Pack four runs of 32 two-bit codes: [blocks, 256] to [blocks, 64]."""
    runs = codes.reshape(-1, 2, 4, 32) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(runs, 2).reshape(len(codes), -1)
    return packed


def _six_bits(scales: Bytes) -> Bytes:
    """Pack 16 six-bit scales into [blocks, 12]: low nibbles, then high bits."""
    low = scales[:, :8] & 15 | scales[:, 8:] << 4
    high = (scales >> 4).reshape(-1, 4, 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.concatenate([low, np.bitwise_or.reduce(high, 1)], 1)


def _head(fitted: Affine) -> Bytes:
    """Return the bytes of factors, integer scales and integer minimums.

    The upper two bits of scales and minimums 4 to 7 are stored with numbers 0 to 3.
    """
    scales, minimums = fitted.scales, fitted.minimums
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minimums[:, :4] | minimums[:, 4:] >> 4 << 6
    third = scales[:, 4:] & 15 | minimums[:, 4:] << 4
    return np.concatenate([half_bytes(fitted.d), half_bytes(fitted.dmin), first, second, third], 1)


def _nibbles(codes: Bytes) -> Bytes:
    """Pack pairs of groups of 4-bit codes: [blocks, 256] to [blocks, 128]."""
    pairs = codes.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << _FOUR).reshape(len(codes), -1)
