"""Q2_K: 16 groups of 16 weights with scales and minimums of 4 bits."""

import numpy as np

from specinfer.model.formats.affine import Affine
from specinfer.model.formats.rounding import Bytes, Floats, grouped, half_bytes


def quantise_q2_k(x: Floats) -> Bytes:
    """Return blocks [blocks, 84] of rows."""
    fitted = Affine(grouped(x, 16), 3, 15, 16)
    scales = fitted.scales | fitted.minimums << 4
    return np.concatenate(
        [scales, pairs_of_bits(fitted.codes), half_bytes(fitted.d), half_bytes(fitted.dmin)], 1
    )


def pairs_of_bits(codes: Bytes) -> Bytes:
    """Return [blocks, 64] of codes [blocks, 256] of two bits: four runs of 32 share bytes."""
    runs = codes.reshape(-1, 2, 4, 32) << np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    packed: Bytes = np.bitwise_or.reduce(runs, 2).reshape(len(codes), -1)
    return packed
