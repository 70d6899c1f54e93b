"""The reference implementation of block products, compared with the dequantisers of `gguf`."""

import gguf
import numpy as np
import pytest

from tests.support.models.block_products import (
    BLOCK_BYTES,
    integer_blocks,
    random_rows,
)


@pytest.mark.parametrize("name", sorted(BLOCK_BYTES))
def test_integer_blocks_equal_the_weights_that_gguf_reads(name: str) -> None:
    rows = random_rows(name, 5, 512)
    expected = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    np.testing.assert_allclose(integer_blocks(name, rows).values().reshape(5, 512), expected, 1e-5, 1e-6)
