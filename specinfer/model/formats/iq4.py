"""IQ4_NL and IQ4_XS: 4-bit weights with 16 unevenly spaced values."""

import numpy as np
from numpy.typing import NDArray

from specinfer.model.formats.rounding import Bytes, Floats, grouped, half_bytes, inverse_of, to_half
from specinfer.model.formats.symmetric import fit, shared

VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_STEPS = np.arange(-254, 255, dtype=np.float32) / 2
_CODES = np.abs(_STEPS[:, None] - VALUES).argmin(1).astype(np.uint8)
"""Code of the nearest value, for -127, -126.5, ..., 127."""
_ROUNDED = VALUES[_CODES]
_SHARES = (0.8, 0.87, 0.94, 1.0, 1.06, 1.12, -0.89)
"""Values for a group's largest weight to try, relative to -127.

The last one maps it to 113.
"""


def quantise_iq4_nl(x: Floats) -> Bytes:
    """Return the bytes [blocks, 18] of rows."""
    groups = grouped(x, 32)
    factor = to_half(fit(groups, -127, _nearest, _SHARES))
    codes = _codes(groups * inverse_of(factor.astype(np.float32)))
    return np.concatenate([half_bytes(factor), _nibbles(codes)], 1)


def quantise_iq4_xs(x: Floats) -> Bytes:
    """Return the bytes [blocks, 136] of rows."""
    groups = grouped(x, 32)
    factor, scales, inverse = shared(fit(groups, -127, _nearest, _SHARES), -32, 8)
    codes = _codes(groups * inverse)
    six = (scales + 32).astype(np.uint8)
    low = six[:, ::2] & 15 | six[:, 1::2] << 4
    high = np.bitwise_or.reduce((six >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16), 1)
    parts = [half_bytes(factor), high[:, None].view(np.uint8), low, _nibbles(codes).reshape(len(factor), 128)]
    return np.concatenate(parts, 1)


def _half_steps(x: Floats) -> NDArray[np.int16]:
    return np.clip(np.rint(x * 2), -254, 254).astype(np.int16) + np.int16(254)


def _nearest(x: Floats) -> Floats:
    rounded: Floats = np.take(_ROUNDED, _half_steps(x), mode="clip")  # faster than indexing
    return rounded


def _codes(x: Floats) -> Bytes:
    return np.ascontiguousarray(np.take(_CODES, _half_steps(x), mode="clip").T)


def _nibbles(codes: Bytes) -> Bytes:
    """Pack both halves of codes [groups, 32] into nibbles of [groups, 16]."""
    return codes[:, :16] | codes[:, 16:] << np.uint8(4)
