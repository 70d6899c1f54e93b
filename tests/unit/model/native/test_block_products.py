"""The reference implementation of block products, compared with the dequantisers of `gguf`."""

import gguf
import numpy as np
import pytest

from tests.support.models.block_products import (
    BLOCK_BYTES,
    K_QUANTS,
    integer_blocks,
    product,
    quantise_q8_0,
    quantise_q8_k,
    random_rows,
)


@pytest.mark.parametrize("name", sorted(BLOCK_BYTES))
def test_integer_blocks_equal_the_weights_that_gguf_reads(name: str) -> None:
    rows = random_rows(name, 5, 512)
    expected = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    np.testing.assert_allclose(integer_blocks(name, rows).values().reshape(5, 512), expected, 1e-5, 1e-6)


@pytest.mark.parametrize("name", sorted(BLOCK_BYTES))
def test_products_are_those_of_activations_in_eight_bits(name: str) -> None:
    rows = random_rows(name, 7, 512, seed=1)
    x = np.random.default_rng(2).normal(size=(3, 512)).astype(np.float32)
    weights = integer_blocks(name, rows).values().reshape(7, 512)
    numbers, scales = (quantise_q8_k if name in K_QUANTS else quantise_q8_0)(x)
    rounded = (numbers * scales[..., None]).reshape(3, 512)
    np.testing.assert_allclose(product(name, rows, x), rounded @ weights.T, 1e-9, 1e-9)


def test_q8_0_rounds_to_the_nearest_of_127_steps() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = 127, -2.5, 1.5, -127
    numbers, scales = quantise_q8_0(x)
    assert numbers[0, 0, :4].tolist() == [127, -2, 2, -127]
    assert scales.tolist() == [[1.0, 0.0]]
    assert not numbers[0, 1].any()


def test_q8_k_gives_its_largest_number_minus_127() -> None:
    x = np.zeros((1, 512), np.float32)
    x[0, :3] = 2, -4, 4
    numbers, scales = quantise_q8_k(x)
    assert numbers[0, 0, :3].tolist() == [64, -127, 127]
    np.testing.assert_allclose(scales, [[4 / 127, 0]], 1e-6)
