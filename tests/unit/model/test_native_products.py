"""Products of the compiled kernels with blocks and numbers of GGUF, against the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from tests.support.block_models import one_product, stored
from tests.support.block_products import (
    BLOCK_BYTES,
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
"""Scales of blocks: none, the largest and smallest of float16, ordinary ones."""
ROUNDING = 2.0**-24
SMALLEST = 2.0**-126


def random_blocks(kind: str, n: int, k: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return rows [n, bytes] of any valid blocks: many of all zeros or all ones but for their factors."""
    size, weights = BLOCK_BYTES[kind], 256 if kind in K_QUANTS else 32
    shape = (n, k // weights, size)
    blocks = random.integers(0, 256, shape, np.uint8)
    pattern = random.integers(0, 6, (n, k // weights, 1))
    blocks = np.where(pattern == 0, np.uint8(0), np.where(pattern == 1, np.uint8(255), blocks))
    extreme = random.random((n, 1, 1)) < 0.5  # else one extreme scale hides all blocks beside it
    for at in factors_at(kind):
        ordinary = random.normal(0, 0.02, (*shape[:2], 1)).astype(np.float16)
        factors = np.where(extreme, random.choice(FACTORS, (*shape[:2], 1)), ordinary)
        blocks[..., at : at + 2] = np.ascontiguousarray(factors).view(np.uint8)
    blocks[pattern[..., 0] == 0] = 0
    return blocks.reshape(n, -1)


def random_inputs(rows: int, k: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Return activations up to 2^-13: of any sizes, zeros, or one huge number beside small ones."""
    x = random.normal(size=(rows, k)) * 2.0 ** random.integers(-20, 1, (rows, 1))
    kinds = random.integers(0, 5, rows)
    x[kinds == 0] = 0
    x[kinds == 1, :] *= 2.0**-12
    x[kinds == 1, int(random.integers(k))] = random.choice([-1, 1]) * 5.0
    x[kinds == 2] = np.rint(x[kinds == 2] * 4) / 4  # many ties
    return np.clip(x * 2.0**-16, -(2.0**-13), 2.0**-13).astype(np.float32)


def bound(kind: str, rows: NDArray[np.uint8], x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the rounding of float32 sums [R, N]: one per term, of all that they add up to."""
    blocks = integer_blocks(kind, rows)
    numbers, scales = (quantise_q8_k if kind in K_QUANTS else quantise_q8_0)(x)
    groups = blocks.scales.shape[-1]
    codes = blocks.codes.reshape(*blocks.codes.shape[:-1], groups, -1)
    found = []
    for a, scale in zip(numbers.reshape(*numbers.shape[:2], groups, -1), scales, strict=True):
        main = np.abs(blocks.scales * (codes * a).sum(-1)).sum(-1) * np.abs(blocks.scale)
        least = np.abs(blocks.minimums * a.sum(-1)).sum(-1) * np.abs(blocks.offset)
        found.append((np.abs(scale) * (main + least)).sum(-1))
    operations = 2 * groups + blocks.codes.shape[1] + 3  # sums, and the scale of activations
    return operations * ROUNDING * np.array(found) + operations * SMALLEST


def logits_of(runner: ModelRunner, tokens: list[int]) -> NDArray[np.float32]:
    """Return the logits [R, N] after each token, every one alone in its sequence."""
    segments = [Segment(runner.open(), [token], want_last=True) for token in tokens]
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
def test_products_are_those_of_the_oracle(kind: str, seed: int, n: int, depth: int, rows: int, scale: int) -> None:
    random = np.random.default_rng(seed)
    k = depth * (256 if kind in K_QUANTS else 32)
    weights, x = random_blocks(kind, n, k, random), random_inputs(rows, k, random)
    runner = one_product(kind, torch.from_numpy(weights), x, scale)
    found = logits_of(runner, list(range(rows)))
    read = x * np.float32(2.0**scale)
    assert (np.abs(found - product(kind, weights, read)) <= bound(kind, weights, read)).all()


@KINDS
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_no_number_stays_in_its_row(kind: str, number: float) -> None:
    random = np.random.default_rng(3)
    weights = torch.from_numpy(random_blocks(kind, 37, 512, random))
    x = random_inputs(6, 512, random)
    expected = logits_of(one_product(kind, weights, x), list(range(6)))
    x[2, 300] = number
    found = logits_of(one_product(kind, weights, x), list(range(6)))
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(expected, 2, 0))


@pytest.mark.parametrize("kind", ["F16", "F32"])
@pytest.mark.parametrize(("n", "k"), [(1, 34), (37, 288), (70, 514)])
def test_numbers_are_multiplied_as_they_are(kind: str, n: int, k: int) -> None:
    random = np.random.default_rng(n)
    x = random_inputs(9, k, random)
    weights = random.normal(size=(n, k)).astype(np.float16 if kind == "F16" else np.float32)
    found = logits_of(one_product(kind, stored(kind, weights.astype(np.float32)), x, 14), list(range(9)))
    exact = (x.astype(np.float64) * 2.0**14) @ weights.astype(np.float64).T
    terms = (np.abs(x).astype(np.float64) * 2.0**14) @ np.abs(weights).astype(np.float64).T
    assert (np.abs(found - exact) <= k * ROUNDING * terms).all()
