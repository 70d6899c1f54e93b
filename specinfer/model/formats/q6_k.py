"""Q6_K: 16 groups of 16 weights of 6 bits, with signed scales of 8 bits."""

import numpy as np

from specinfer.model.formats.rounding import Bytes, Floats, grouped, half_bytes
from specinfer.model.formats.symmetric import fit, shared

_SHARES = (0.96, 0.98, 1.0, 1.02)


def quantise_q6_k(x: Floats) -> Bytes:
    """Return blocks [blocks, 210] of rows."""
    groups = grouped(x, 16)
    factor, scales, inverse = shared(fit(groups, -32, _nearest, _SHARES), -128, 16)
    codes = np.ascontiguousarray((_nearest(groups * inverse) + 32).astype(np.uint8).T)
    runs = codes.reshape(-1, 2, 4, 32)  # of each half
    low = runs & 15
    nibbles = low[:, :, :2] | low[:, :, 2:] << 4
    high = np.bitwise_or.reduce(runs >> 4 << np.arange(0, 8, 2, dtype=np.uint8)[:, None], 2)
    blocks = len(factor)
    parts = [nibbles.reshape(blocks, 128), high.reshape(blocks, 64), scales.astype(np.int8).view(np.uint8)]
    return np.concatenate([*parts, half_bytes(factor)], 1)


def _nearest(x: Floats) -> Floats:
    """Round in place."""
    return np.clip(np.rint(x, out=x), -32, 31, out=x)
