"""Formats of weights: quantisers against the dequantisers of `gguf`, fallbacks, and counts of formats in use."""

from collections.abc import Mapping

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.errors import SettingError
from specinfer.model.formats.base import BlockFormat
from specinfer.model.formats.registry import BLOCK_FORMATS, FORMATS, find_format
from specinfer.model.formats.weights_in_format import QuantisedWeights, WeightFormats, WeightsInFormat
from specinfer.model.native.build import load_library
from specinfer.model.native.requantise import requantised
from specinfer.model.weights.interfaces import Blocks
from specinfer.options.model_options import ModelOptions, described
from tests.support.models.block_models import FormattedWeights, stored
from tests.support.models.block_products import integer_blocks

GAUSSIAN = {"q8_0": 0.006, "q5_1": 0.04, "q5_0": 0.045, "q4_1": 0.082, "q4_0": 0.09}
"""Maximum root mean square error of quantised Gaussian numbers, relative to their root mean square."""
EACH = pytest.mark.parametrize("chosen", BLOCK_FORMATS, ids=lambda chosen: chosen.name)


def error(chosen: BlockFormat, x: np.ndarray) -> float:
    values = chosen.dequantise(chosen.quantise(x))
    return float(np.sqrt(((values - x) ** 2).mean() / (x**2).mean()))


def rows(seed: int, heavy: bool = False) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.standard_t(4, (24, 1024)) if heavy else random.normal(size=(24, 1024))
    return (0.03 * x).astype(np.float32)


@EACH
def test_errors_are_below_the_bounds_of_the_format(chosen: BlockFormat) -> None:
    assert error(chosen, rows(1)) < GAUSSIAN[chosen.name]
    assert error(chosen, rows(2, heavy=True)) < 1.4 * GAUSSIAN[chosen.name]


@EACH
def test_sizes_and_values_are_those_of_gguf(chosen: BlockFormat) -> None:
    kind = gguf.GGMLQuantizationType[chosen.type_name]
    assert (chosen.block, chosen.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    blocks = chosen.quantise(rows(4))
    assert blocks.shape == (24, 1024 // chosen.block * chosen.block_bytes)
    values = integer_blocks(chosen.type_name, blocks).values().reshape(24, 1024)
    np.testing.assert_allclose(values, chosen.dequantise(blocks), 1e-5, 1e-7)


@EACH
@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(-12, 3))
def test_rows_do_not_depend_on_each_other(chosen: BlockFormat, seed: int, exponent: float) -> None:
    x = np.random.default_rng(seed).normal(size=(3, 512)).astype(np.float32) * np.float32(2.0**exponent)
    together = chosen.quantise(x)
    for row in range(3):
        np.testing.assert_array_equal(chosen.quantise(x[row : row + 1])[0], together[row])


@EACH
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_rows_of_one_value_have_small_errors(chosen: BlockFormat, value: float) -> None:
    values = chosen.dequantise(chosen.quantise(np.full((2, 512), value, np.float32)))
    np.testing.assert_allclose(values, value, rtol=0.02)


@EACH
def test_quantising_again_adds_little(chosen: BlockFormat) -> None:
    once = chosen.dequantise(chosen.quantise(rows(6)))
    assert error(chosen, once) < 0.5 * GAUSSIAN[chosen.name]


def test_former_names_are_refused_with_the_new_ones() -> None:
    for former, name in (("converted", "bf16"), ("native", "auto"), ("int4", "q4_1"), ("w8a8", "q8_0")):
        with pytest.raises(SettingError, match=f"weights = '{former}': is called {name} now"):
            find_format(former)
    with pytest.raises(SettingError, match=r"weights = 'q4_k': is read from GGUF files, not made: .*q5_0"):
        find_format("q4_k")
    words = described(ModelOptions)["weights"].help.replace(":", ",")
    assert all(f" {name}," in words for name in FORMATS)


class File(dict[str, torch.Tensor]):
    """Weights of a file in which some tensors are stored in blocks."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], kinds: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self._kinds = kinds

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        if name not in self._kinds:
            return None
        return self._kinds[name], stored(self._kinds[name], self[name].numpy())


TENSORS = {
    "model.embed_tokens.weight": torch.randn(8, 256),
    "model.layers.0.self_attn.q_proj.weight": torch.randn(8, 256),
    "model.layers.0.mlp.down_proj.weight": torch.randn(8, 96),
    "model.norm.weight": torch.randn(256),
}
EMBEDDING, QUERY, DOWN, NORM = TENSORS


def read(weights: WeightsInFormat) -> WeightFormats:
    """Read all tensors like the native executor, for which the embedding is also the head."""
    weights[EMBEDDING], weights[NORM]
    for name in (EMBEDDING, QUERY, DOWN):
        if weights.blocks(name) is None:
            weights[name]
    return weights.formats()


def test_formats_in_use_are_counted() -> None:
    file = File(TENSORS, {EMBEDDING: "Q6_K", QUERY: "Q4_K"})
    bfloat16 = torch.bfloat16
    as_stored = read(WeightsInFormat(file, FORMATS["auto"], "native", bfloat16))
    assert str(as_stored) == "as in the file: 1 Q4_K, 1 Q6_K, 2 BF16, 1 F32"
    assert as_stored.blocks == ("Q4_K", "Q6_K")
    quantised = read(WeightsInFormat(TENSORS, FORMATS["q4_1"], "native", bfloat16))
    assert str(quantised) == "in Q4_1, as asked: 3 Q4_1, 1 BF16, 1 F32"
    draft = read(WeightsInFormat(TENSORS, FORMATS["q8_0"], "native", bfloat16, asked=False))
    assert str(draft) == "in Q8_0, as auto is for drafts: 3 Q8_0, 1 BF16, 1 F32"
    for weights, name, backend, words in (
        (TENSORS, "auto", "native", "in bfloat16, as dtype says: 3 BF16, 1 F32"),
        (TENSORS, "auto", "torch", "in bfloat16, as dtype says: 4 BF16"),
        (file, "bf16", "native", "in bfloat16, as asked: 3 BF16, 1 F32"),
        (
            file,
            "auto",
            "torch",
            "in bfloat16, as the torch executor in bfloat16 multiplies no blocks: 4 BF16",
        ),
        (TENSORS, "int8", "gpu", "quantised to int8, as asked: 2 INT8, 2 BF16"),
    ):
        counts = read(WeightsInFormat(weights, FORMATS[name], backend, bfloat16))
        assert str(counts) == words


def test_unquantised_tensors_of_a_file_are_counted_by_their_type() -> None:
    rows = {DOWN: ("F16", TENSORS[DOWN].half().view(torch.uint8)), QUERY: ("F32", TENSORS[QUERY])}
    weights = WeightsInFormat(FormattedWeights(TENSORS, rows), FORMATS["auto"], "native", torch.bfloat16)
    counts = read(weights)
    assert str(counts) == "as in the file: 2 F32, 1 BF16, 1 F16"
    assert counts.blocks == ("F16", "F32")


def test_a_dequantised_matrix_does_not_count_as_blocks() -> None:
    weights = WeightsInFormat(File(TENSORS, {QUERY: "Q4_K"}), FORMATS["auto"], "native", torch.bfloat16)
    assert weights.blocks(QUERY) is not None
    weights[QUERY]
    assert dict(weights.formats().counts) == {"BF16": 1}


@pytest.mark.native
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_0", "Q5_K", "Q6_K", "Q8_0", "F16", "BF16", "F32"])
def test_the_kernels_requantise_as_gguf(kind: str) -> None:
    """Numbers half-way between two steps may be rounded to either."""
    load_library()
    x = np.ascontiguousarray(rows(11)[:, :512])
    blocks = stored(kind, x).contiguous()
    numbers = gguf.dequantize(blocks.numpy().view(np.uint8), gguf.GGMLQuantizationType[kind])
    ours = requantised((kind, blocks), 512)
    assert ours is not None
    chosen = FORMATS["q4_0"]
    assert isinstance(chosen, BlockFormat)
    theirs = chosen.dequantise(chosen.quantise(numbers))
    scales = ours[1].numpy().reshape(24, 16, 18)[..., :2].copy().view(np.float16).astype(np.float32)
    steps = (chosen.dequantise(ours[1].numpy()) - theirs).reshape(24, 16, 32) / np.abs(scales)
    assert np.abs(steps).max() < 1.01
    assert (np.abs(steps) > 0.01).mean() < 0.05


def test_blocks_of_the_wanted_type_stay_as_the_file_has_them() -> None:
    file = File(TENSORS, {QUERY: "Q4_1"})
    wanted, other = FORMATS["q4_1"], FORMATS["q8_0"]
    assert isinstance(wanted, BlockFormat)
    assert isinstance(other, BlockFormat)
    ours, kept = file.blocks(QUERY), QuantisedWeights(file, wanted).blocks(QUERY)
    assert ours is not None
    assert kept is not None
    assert torch.equal(kept[1], ours[1])
    again = QuantisedWeights(file, other).blocks(QUERY)
    assert again is not None
    assert again[0] == "Q8_0"
