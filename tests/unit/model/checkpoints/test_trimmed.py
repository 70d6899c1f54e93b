"""Heads for a subset of the tokens: logits equal those rows of the whole model, in the kernels bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.gguf_weights import GgufWeights
from tests.support.models.gguf_files import Gguf
from tests.support.tiny_models import replaceable_head, runner_of, tiny_transformers

KEPT = (3, 96, 5, 40, 41, 0, 77, 12)
OPTIONS: list[dict[str, Any]] = [
    {"executor": "torch"},
    pytest.param({"executor": "native"}, marks=pytest.mark.native),
    pytest.param({"executor": "native", "dtype": "bfloat16"}, marks=pytest.mark.native),
    pytest.param({"executor": "native", "dtype": "bfloat16", "weights": "q8_0"}, marks=pytest.mark.native),
    pytest.param({"executor": "native", "dtype": "bfloat16", "weights": "q4_0"}, marks=pytest.mark.native),
]


def logits_of(runner: ModelRunner) -> torch.Tensor:
    segment = Segment(runner.open(), [5, 17, 3, 88, 41], [9, 60], [-1, 0], want_last=True)
    return runner.forward([segment])[0]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_its_logits_are_rows_of_the_whole_models(options: dict[str, Any], tied: bool) -> None:
    sizes = {"intermediate_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tiny_transformers("llama" if tied else "llama-untied", **sizes)
    whole, trimmed = runner_of(model, **options), runner_of(model, token_ids=KEPT, **options)
    assert trimmed.config.vocab_size == len(KEPT)
    exact = 0.0 if options["executor"] == "native" else 1e-6  # products of torch depend on their sizes
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, list(KEPT)], rtol=exact, atol=exact)


def test_logits_of_a_renamed_family_are_rows_too() -> None:
    model = tiny_transformers("gpt_neox")
    whole, trimmed = runner_of(model), runner_of(model, token_ids=KEPT)
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, list(KEPT)], rtol=1e-5, atol=1e-6)


@pytest.mark.native
def test_rows_of_a_head_are_replaced_by_those_of_other_tokens() -> None:
    model = tiny_transformers("llama", head_dim=32)
    whole, trimmed = (runner_of(model, executor="native", **options) for options in ({}, {"token_ids": KEPT}))
    head = replaceable_head(model, trimmed, KEPT)
    head.replace({2: 60, 6: 9})
    now = [3, 96, 60, 40, 41, 0, 9, 12]
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, now], rtol=0, atol=0)
    head.replace({6: 5, 0: 8})
    now[6], now[0] = 5, 8
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, now], rtol=0, atol=0)


@pytest.mark.native
def test_the_head_of_a_requantised_file_is_replaced_in_its_format(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = tiny_transformers("llama", intermediate_size=128, **sizes)
    path = Gguf.of(model, gguf.GGMLQuantizationType.Q8_0).write(tmp_path / "model.gguf")
    config = from_transformers(GgufWeights(path).config())
    options = RunnerOptions(kv_tokens=2048, blocks_as="q4_0")
    whole = ModelRunner.build(config, GgufWeights(path), options)
    trimmed = ModelRunner.build(config, GgufWeights(path), replace(options, token_ids=KEPT))
    assert (whole.weights.blocks, trimmed.weights.blocks) == (("Q4_0",), ("Q4_0", "Q8_0")), "embeddings stay"
    assert trimmed.head is not None
    trimmed.head.replace({2: 60, 6: 9})
    now = [3, 96, 60, 40, 41, 0, 9, 12]
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, now], rtol=0, atol=0)
    as_stored = ModelRunner.build(config, GgufWeights(path), replace(options, blocks_as="auto"))
    assert as_stored.weights.blocks == ("Q8_0",)


@pytest.mark.native
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_the_head_of_a_file_is_replaced_as_stored(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = tiny_transformers("llama", intermediate_size=128, **sizes)
    path = Gguf.of(model, gguf.GGMLQuantizationType[kind]).write(tmp_path / "model.gguf")
    config, options = from_transformers(GgufWeights(path).config()), RunnerOptions(kv_tokens=2048)
    whole = ModelRunner.build(config, GgufWeights(path), options)
    trimmed = ModelRunner.build(config, GgufWeights(path), replace(options, token_ids=KEPT))
    assert whole.head is None
    assert trimmed.head is not None
    trimmed.head.replace({2: 60, 6: 9})
    now = [3, 96, 60, 40, 41, 0, 9, 12]
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, now], rtol=0, atol=0)
    for file_options in ({"executor": "torch"}, {"weights": "q4_1"}, {"weights": "bf16"}):
        fixed = replace(options, token_ids=KEPT, **file_options)
        assert ModelRunner.build(config, GgufWeights(path), fixed).head is None
