"""Quantises groups of weights to scale, minimum and codes (Q2_K, Q4_K, Q5_K)."""

import numpy as np
from numpy.typing import NDArray

from specinfer.model.formats.rounding import Floats, importance, inverse_of, sum_products, to_half

SHIFTS = (-0.9, -0.6, -0.3, 0.0, 0.3, 0.6)
"""Changes of the maximum code, tried while fitting a group's scale."""


class Affine:
    """Quantised groups of weights.

    In a block, weights of group j are `d * scales[j] * code - dmin * minimums[j]`, with integer scales and minimums.
    """

    def __init__(self, x: Floats, top: int, scale_top: int, groups: int) -> None:
        """Quantise x [weights of a group, groups].

        Args:
            top: maximum code; the lowest code is 0.
            scale_top: maximum of integer scales and minimums.
            groups: number of groups in a block.
        """
        scale, minimum = fit(x, top)
        self.d, self.scales = _shared(scale, scale_top, groups)
        """d: [blocks] float16; scales: [blocks, groups] uint8."""
        self.dmin, self.minimums = _shared(minimum, scale_top, groups)
        step = (self.d.astype(np.float32)[:, None] * self.scales).reshape(-1)
        least = (self.dmin.astype(np.float32)[:, None] * self.minimums).reshape(-1)
        codes = (x + least) * inverse_of(step)
        np.clip(np.rint(codes, out=codes), 0, top, out=codes)
        self.codes = np.ascontiguousarray(codes.astype(np.uint8).T).reshape(len(self.d), -1)
        """[blocks, weights of a block] uint8."""


def fit(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Return scales and minimums >= 0, [groups] each, of x [weights, groups]."""
    weight = importance(x)
    low, high = np.minimum(x.min(0), 0), x.max(0)
    weighted = weight * x
    sums, sums_x = weight.sum(0), weighted.sum(0)
    shifted, inverse = x - low, inverse_of(high - low)
    scale, minimum = (high - low) / np.float32(top), -low
    best = np.zeros_like(low)  # error minus the error of all zeros; lower is better
    for shift in SHIFTS:
        codes = shifted * (inverse * np.float32(top + shift))
        np.clip(np.rint(codes, out=codes), 0, top, out=codes)
        sums_q, sums_xq = sum_products(weight, codes), sum_products(weighted, codes)
        sums_qq = sum_products(weight, codes, codes)
        s, m = _least_squares(sums, sums_x, sums_q, sums_qq, sums_xq)
        error = s * s * sums_qq + m * m * sums - 2 * (s * sums_xq - m * sums_x + s * m * sums_q)
        better = (error < best) & (s > 0)
        scale, minimum = np.where(better, s, scale), np.where(better, m, minimum)
        best = np.where(better, error, best)
    return scale, minimum


def _least_squares(
    sums: Floats, sums_x: Floats, sums_q: Floats, sums_qq: Floats, sums_xq: Floats
) -> tuple[Floats, Floats]:
    """Return the scale, and minimum >= 0, with the least squared error."""
    both = sums * sums_qq
    determinant = both - sums_q * sums_q
    varied = determinant > np.float32(1e-5) * both  # the codes are not all equal
    inverse = inverse_of(determinant)
    scale = (sums * sums_xq - sums_q * sums_x) * inverse
    minimum = (sums_q * sums_xq - sums_qq * sums_x) * inverse
    free = varied & (minimum > 0)
    return np.where(free, scale, sums_xq * inverse_of(sums_qq)), np.where(free, minimum, 0)


def _shared(values: Floats, top: int, groups: int) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """Round numbers >= 0 to integers times a factor per block.

    Returns:
        Factors [blocks], and integers [blocks, groups] up to `top`.
    """
    blocks = values.reshape(-1, groups)
    factor = to_half(blocks.max(1) / np.float32(top))
    inverse = inverse_of(factor.astype(np.float32))
    return factor, np.clip(np.rint(blocks * inverse[:, None]), 0, top).astype(np.uint8)
