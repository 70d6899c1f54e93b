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
from specinfer.model.formats.registry import (
    BLOCK_FORMATS,
    FORMATS,
    find_format,
    format_for_rows,
)
from specinfer.model.formats.weights_in_format import QuantisedWeights, WeightFormats, WeightsInFormat
from specinfer.model.weights.interfaces import Blocks
from specinfer.options.model_options import ModelOptions, described
from tests.support.models.block_models import FormattedWeights
from tests.support.models.block_products import integer_blocks

GAUSSIAN = {
    "q8_0": 0.006,
    "q6_k": 0.018,
    "q5_k": 0.038,
    "q5_1": 0.04,
    "q5_0": 0.045,
    "q4_k": 0.075,
    "iq4_nl": 0.078,
    "iq4_xs": 0.079,
    "q4_1": 0.082,
    "q4_0": 0.09,
    "q3_k": 0.15,
    "q2_k": 0.285,
}
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


@pytest.mark.parametrize("better", ["q4_k", "iq4_nl", "iq4_xs"])
@pytest.mark.parametrize("heavy", [False, True])
def test_searched_blocks_are_better_than_simple_ones_of_equal_size(better: str, heavy: bool) -> None:
    one, other = FORMATS[better], FORMATS["q4_0"]
    assert isinstance(one, BlockFormat)
    assert isinstance(other, BlockFormat)
    assert error(one, rows(3, heavy)) < 0.9 * error(other, rows(3, heavy))


@EACH
def test_sizes_and_values_are_those_of_gguf(chosen: BlockFormat) -> None:
    kind = gguf.GGMLQuantizationType[chosen.type_name]
    assert (chosen.block, chosen.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    stored = chosen.quantise(rows(4))
    assert stored.shape == (24, 1024 // chosen.block * chosen.block_bytes)
    values = integer_blocks(chosen.type_name, stored).values().reshape(24, 1024)
    np.testing.assert_allclose(values, chosen.dequantise(stored), 1e-5, 1e-7)


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


def test_values_that_a_block_can_represent_are_exact() -> None:
    """Every group has its lowest and its highest code, and every block its largest scale."""
    random = np.random.default_rng(5)
    for name, top, groups, scale_top in (("q4_k", 15, 8, 63), ("q5_k", 31, 8, 63), ("q2_k", 3, 16, 15)):
        codes = random.integers(0, top + 1, (64, groups, 256 // groups))
        codes[:, :, 0], codes[:, :, 1] = 0, top
        scales, minimums = (random.integers(scale_top // 2, scale_top + 1, (64, groups, 1)) for _ in range(2))
        scales[:, 0], minimums[:, 1] = scale_top, scale_top
        x = (2.0**-9 * scales * codes - 2.0**-9 * minimums).astype(np.float32).reshape(64, 256)
        chosen = FORMATS[name]
        assert isinstance(chosen, BlockFormat)
        np.testing.assert_allclose(chosen.dequantise(chosen.quantise(x)), x, atol=2e-6)
    for name, low, scale_low in (("q6_k", -32, -128), ("q3_k", -4, -32)):
        codes = random.integers(low, -low, (64, 16, 16))
        codes[:, :, 0] = low
        scales = random.integers(scale_low, -scale_low, (64, 16, 1))
        scales[:, 3] = scale_low
        x = (2.0**-12 * scales * codes).astype(np.float32).reshape(64, 256)
        chosen = FORMATS[name]
        assert isinstance(chosen, BlockFormat)
        np.testing.assert_allclose(chosen.dequantise(chosen.quantise(x)), x, atol=2e-6)


@EACH
def test_quantising_again_adds_little(chosen: BlockFormat) -> None:
    once = chosen.dequantise(chosen.quantise(rows(6)))
    assert error(chosen, once) < 0.5 * GAUSSIAN[chosen.name]


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("q4_k", 512, "q4_k"),
        ("q4_k", 576, "q5_0"),
        ("q5_k", 576, "q5_1"),
        ("q6_k", 576, "q8_0"),
        ("q3_k", 576, "q4_0"),
        ("q2_k", 576, "q4_0"),
        ("iq4_xs", 576, "iq4_nl"),
        ("q8_0", 48, None),
        ("q4_k", 48, None),
    ],
)
def test_rows_that_fill_no_blocks_fall_back(name: str, columns: int, expected: str | None) -> None:
    chosen = FORMATS[name]
    assert isinstance(chosen, BlockFormat)
    chosen_format = format_for_rows(chosen, columns)
    assert (chosen_format.name if chosen_format else None) == expected


def test_former_names_are_refused_with_the_new_ones() -> None:
    for former, name in (("converted", "bf16"), ("native", "auto"), ("int4", "q4_1"), ("w8a8", "q8_0")):
        with pytest.raises(SettingError, match=f"weights = '{former}': is called {name} now"):
            find_format(former)
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
        chosen = FORMATS[self._kinds[name].lower()]
        assert isinstance(chosen, BlockFormat)
        return self._kinds[name], torch.from_numpy(chosen.quantise(self[name].numpy()))


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
    quantised = read(WeightsInFormat(TENSORS, FORMATS["q4_k"], "native", bfloat16))
    expected = "in Q4_K, as asked, rows that fill no blocks of 256 in Q5_0: 2 Q4_K, 1 Q5_0, 1 BF16, 1 F32"
    assert str(quantised) == expected
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
    stored = {DOWN: ("F16", TENSORS[DOWN].half().view(torch.uint8)), QUERY: ("F32", TENSORS[QUERY])}
    weights = WeightsInFormat(FormattedWeights(TENSORS, stored), FORMATS["auto"], "native", torch.bfloat16)
    counts = read(weights)
    assert str(counts) == "as in the file: 2 F32, 1 BF16, 1 F16"
    assert counts.blocks == ("F16", "F32")


def test_a_dequantised_matrix_does_not_count_as_blocks() -> None:
    weights = WeightsInFormat(File(TENSORS, {QUERY: "Q4_K"}), FORMATS["auto"], "native", torch.bfloat16)
    assert weights.blocks(QUERY) is not None
    weights[QUERY]
    assert dict(weights.formats().counts) == {"BF16": 1}


def test_blocks_of_the_wanted_type_stay_as_the_file_has_them() -> None:
    file = File(TENSORS, {QUERY: "Q4_K"})
    wanted, other = FORMATS["q4_k"], FORMATS["q8_0"]
    assert isinstance(wanted, BlockFormat)
    assert isinstance(other, BlockFormat)
    stored, kept = file.blocks(QUERY), QuantisedWeights(file, wanted).blocks(QUERY)
    assert stored is not None
    assert kept is not None
    assert torch.equal(kept[1], stored[1])
    again = QuantisedWeights(file, other).blocks(QUERY)
    assert again is not None
    assert again[0] == "Q8_0"
