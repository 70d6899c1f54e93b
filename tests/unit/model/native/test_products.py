"""Products of the compiled kernels with GGUF's blocks and unquantised matrices, against the reference."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specinfer.model.batch import PassFeatures, Segment, flatten
from tests.support.models.block_models import one_product, stored
from tests.support.models.block_products import (
    BLOCK_BYTES,
    EXPONENTS,
    K_QUANTS,
    factors_at,
    integer_blocks,
    product,
    quantise_q8_0,
    quantise_q8_k,
)

pytestmark = pytest.mark.native
KINDS = pytest.mark.parametrize("kind", sorted(BLOCK_BYTES))
FACTORS = np.array([0, -0.0, 65504, -65504, 6e-8, -6e-8, 6.1e-5, 0.01, -0.02, 1, -3], np.float16)
"""Scales of blocks: zero, the largest and smallest of float16, ordinary ones."""
ROUNDING = 2.0**-24
SMALLEST = 2.0**-126


def random_blocks(kind: str, n: int, k: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return rows [n, bytes] of random valid blocks; many have only zero or one bits except for their scales."""
    size, weights = BLOCK_BYTES[kind], 256 if kind in K_QUANTS else 32
    shape = (n, k // weights, size)
    blocks = random.integers(0, 256, shape, np.uint8)
    pattern = random.integers(0, 6, (n, k // weights, 1))
    blocks = np.where(pattern == 0, np.uint8(0), np.where(pattern == 1, np.uint8(255), blocks))
    if kind == "MXFP4":
        blocks[..., 0] = random.integers(*EXPONENTS, shape[:2], endpoint=True)
    extreme = random.random((n, 1, 1)) < 0.5  # otherwise one extreme scale hides the other blocks
    for at in factors_at(kind):
        ordinary = random.normal(0, 0.02, (*shape[:2], 1)).astype(np.float16)
        factors = np.where(extreme, random.choice(FACTORS, (*shape[:2], 1)), ordinary)
        blocks[..., at : at + 2] = np.ascontiguousarray(factors).view(np.uint8)
    blocks[pattern[..., 0] == 0, kind == "MXFP4" :] = 0
    return blocks.reshape(n, -1)


def random_inputs(rows: int, k: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Return activations of at most 2^-13: rows of various scales, all zeros, or one large number among small ones."""
    x = random.normal(size=(rows, k)) * 2.0 ** random.integers(-20, 1, (rows, 1))
    kinds = random.integers(0, 5, rows)
    x[kinds == 0] = 0
    x[kinds == 1, :] *= 2.0**-12
    x[kinds == 1, int(random.integers(k))] = random.choice([-1, 1]) * 5.0
    x[kinds == 2] = np.rint(x[kinds == 2] * 4) / 4  # many ties
    return np.clip(x * 2.0**-16, -(2.0**-13), 2.0**-13).astype(np.float32)


def bound(kind: str, rows: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the maximum rounding error [R, N] of the float32 sums, for each term of all summed magnitudes."""
    blocks = integer_blocks(kind, rows)
    numbers, scales = (quantise_q8_k if kind in K_QUANTS else quantise_q8_0)(x)
    groups = blocks.scales.shape[-1]
    codes = blocks.codes.reshape(*blocks.codes.shape[:-1], groups, -1)
    bounds = []
    for a, scale in zip(numbers.reshape(*numbers.shape[:2], groups, -1), scales, strict=True):
        main = np.abs(blocks.scales * (codes * a).sum(-1)).sum(-1) * np.abs(blocks.scale)
        least = np.abs(blocks.minimums * a.sum(-1)).sum(-1) * np.abs(blocks.offset)
        bounds.append((np.abs(scale) * (main + least)).sum(-1))
    operations = 2 * groups + blocks.codes.shape[1] + 3  # sums, and the scale of activations
    terms: NDArray[np.float64] = np.array(bounds)
    return operations * (ROUNDING * terms + SMALLEST)


def product_of(
    kind: str, weights: torch.Tensor, x: NDArray[np.float32], scale: int = 0
) -> NDArray[np.float32]:
    """Return the products [R, N] of 2^scale x [R, K] with rows [N, bytes]; no number of x is above 2^-13.

    Every row is a sequence of its own; all are in one pass.
    """
    table = np.zeros((max(len(x), len(weights)), x.shape[1]), np.float32)
    table[: len(x)] = x
    runner = one_product((kind, weights), ("F32", stored("F32", table)), x.shape[1], scale)
    segments = [Segment(runner.open(), [token], want_last=True) for token in range(len(x))]
    return torch.cat(runner.forward(segments)).numpy()


@KINDS
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 70),
    depth=st.integers(1, 5),
    rows=st.integers(1, 11),
    scale=st.sampled_from([0, 16, 40]),
)
def test_products_are_those_of_the_oracle(
    kind: str, seed: int, n: int, depth: int, rows: int, scale: int
) -> None:
    random = np.random.default_rng(seed)
    k = depth * (256 if kind in K_QUANTS else 32)
    weights, x = random_blocks(kind, n, k, random), random_inputs(rows, k, random)
    actual = product_of(kind, torch.from_numpy(weights), x, scale)
    read = x * np.float32(2.0**scale)
    assert (np.abs(actual - product(kind, weights, read)) <= bound(kind, weights, read)).all()


@KINDS
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_affect_only_their_row(kind: str, number: float) -> None:
    random = np.random.default_rng(3)
    weights = torch.from_numpy(random_blocks(kind, 37, 512, random))
    x = random_inputs(6, 512, random)
    expected = product_of(kind, weights, x)
    x[2, 300] = number
    actual = product_of(kind, weights, x)
    assert np.isnan(actual[2]).all()
    np.testing.assert_array_equal(np.delete(actual, 2, 0), np.delete(expected, 2, 0))


@pytest.mark.parametrize("kind", ["F16", "F32"])
@pytest.mark.parametrize(("n", "k"), [(1, 34), (37, 288), (70, 514)])
def test_unquantised_matrices_are_multiplied_without_conversion(kind: str, n: int, k: int) -> None:
    random = np.random.default_rng(n)
    x = random_inputs(9, k, random)
    weights = random.normal(size=(n, k)).astype(np.float16 if kind == "F16" else np.float32)
    actual = product_of(kind, stored(kind, weights.astype(np.float32)), x, 14)
    exact = (x.astype(np.float64) * 2.0**14) @ weights.astype(np.float64).T
    terms = (np.abs(x).astype(np.float64) * 2.0**14) @ np.abs(weights).astype(np.float64).T
    assert (np.abs(actual - exact) <= k * ROUNDING * terms).all()


@pytest.mark.parametrize("kind", [*sorted(BLOCK_BYTES), "F16", "BF16", "F32"])
def test_embeddings_are_those_that_gguf_reads(kind: str) -> None:
    random = np.random.default_rng(4)
    blocks = kind in BLOCK_BYTES
    numbers = random.normal(size=(9, 512)).astype(np.float32)
    rows = torch.from_numpy(random_blocks(kind, 9, 512, random)) if blocks else stored(kind, numbers)
    runner = one_product(("F32", stored("F32", numbers)), (kind, rows), 512)
    segments = [Segment(runner.open(), list(range(9)))]
    runner.cache.reserve(segments[0].sequence, 9)
    states = np.empty((9, 1, 512), np.float32)  # float32, which the runner would round
    runner._executor.run(replace(flatten(segments), features=PassFeatures((0,), states)))
    expected = gguf.dequantize(rows.numpy(), gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(states[:, 0], expected)
