"""Quantises groups of weights to scale and codes (Q3_K, Q6_K, IQ4_NL, IQ4_XS)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specinfer.model.formats.rounding import Floats, importance, inverse_of, sum_products, to_half

Nearest = Callable[[Floats], Floats]
"""Rounds numbers to the nearest values that codes have."""


def fit(x: Floats, lowest: int, nearest: Nearest, shares: tuple[float, ...]) -> Floats:
    """Return the scale [groups] of x [weights, groups]; it may be negative.

    Args:
        lowest: the code's most negative value, the farthest from zero.
        shares: values to try for the group's largest weight, relative to `lowest`.
    """
    weight = importance(x)
    weighted = weight * x
    inverse = inverse_of(np.take_along_axis(x, np.abs(x).argmax(0)[None], 0)[0])
    scale, best = np.zeros_like(inverse), np.zeros_like(inverse)
    for share in shares:
        values = nearest(x * (inverse * np.float32(lowest * share)))
        products, squares = sum_products(weighted, values), sum_products(weight, values, values)
        ratio = products * inverse_of(squares)
        better = products * ratio > best  # by how much the fit lowers the error
        scale, best = np.where(better, ratio, scale), np.where(better, products * ratio, best)
    return scale


def shared(scale: Floats, lowest: int, groups: int) -> tuple[NDArray[np.float16], NDArray[np.int16], Floats]:
    """Round scales to integers times a factor per block.

    Returns:
        Factors [blocks], integers [blocks, groups], and [groups] 1 / rounded scale.
    """
    blocks = scale.reshape(-1, groups)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)[:, 0]
    factor = to_half(largest / np.float32(lowest))
    exact = factor.astype(np.float32)
    whole = np.clip(np.rint(blocks * inverse_of(exact)[:, None]), lowest, -lowest - 1)
    return factor, whole.astype(np.int16), inverse_of((whole * exact[:, None]).reshape(-1))
