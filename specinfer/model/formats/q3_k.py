"""Q3_K: 16 groups of 16 weights of 3 bits, with signed scales of 6 bits."""

import numpy as np

from specinfer.model.formats.q2_k import pairs_of_bits
from specinfer.model.formats.rounding import Bytes, Floats, grouped, half_bytes
from specinfer.model.formats.symmetric import fit, shared

_SHARES = (0.75, 0.85, 0.95, 1.0, 1.05, 1.15)


def quantise_q3_k(x: Floats) -> Bytes:
    """Return blocks [blocks, 110] of rows."""
    groups = grouped(x, 16)
    factor, scales, inverse = shared(fit(groups, -4, _nearest, _SHARES), -32, 16)
    codes = np.ascontiguousarray((_nearest(groups * inverse) + 4).astype(np.uint8).T).reshape(-1, 256)
    third = (codes >> 2).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    mask = np.bitwise_or.reduce(third, 1)
    parts = [
        mask,
        pairs_of_bits(codes & np.uint8(3)),
        _six_bits((scales + 32).astype(np.uint8)),
        half_bytes(factor),
    ]
    return np.concatenate(parts, 1)


def _nearest(x: Floats) -> Floats:
    """Round in place."""
    return np.clip(np.rint(x, out=x), -4, 3, out=x)


def _six_bits(scales: Bytes) -> Bytes:
    """Return [blocks, 12]: two low nibbles in each of 8 bytes, then four times two high bits in each of 4."""
    low = scales[:, :8] & 15 | scales[:, 8:] << 4
    high = (scales >> 4).reshape(-1, 4, 4) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return np.concatenate([low, np.bitwise_or.reduce(high, 1)], 1)
