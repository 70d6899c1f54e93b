"""Heads of some tokens: the logits of a trimmed model are those rows of the whole one's, bit for bit in the kernels."""

from typing import Any

import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from tests.support.tiny_models import runner_of, tiny_transformers

KEPT = (3, 96, 5, 40, 41, 0, 77, 12)
HELD: list[dict[str, Any]] = [
    {"executor": "torch"},
    pytest.param({"executor": "native"}, marks=pytest.mark.native),
    pytest.param({"executor": "native", "dtype": "bfloat16"}, marks=pytest.mark.native),
    pytest.param({"executor": "native", "dtype": "bfloat16", "weights": "q8_0"}, marks=pytest.mark.native),
    pytest.param({"executor": "native", "dtype": "bfloat16", "weights": "q4_0"}, marks=pytest.mark.native),
]


def logits_of(runner: ModelRunner) -> torch.Tensor:
    segment = Segment(runner.open(), [5, 17, 3, 88, 41], [9, 60], [-1, 0], want_last=True)
    return runner.forward([segment])[0]


@pytest.mark.parametrize("options", HELD, ids=str)
@pytest.mark.parametrize("tied", [True, False])
def test_its_logits_are_rows_of_the_whole_models(options: dict[str, Any], tied: bool) -> None:
    sizes = {"intermediate_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = tiny_transformers("llama" if tied else "llama-untied", **sizes)
    whole, trimmed = runner_of(model, **options), runner_of(model, token_ids=KEPT, **options)
    assert trimmed.config.vocab_size == len(KEPT)
    exact = 0.0 if options["executor"] == "native" else 1e-6  # products of torch depend on their sizes
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, list(KEPT)], rtol=exact, atol=exact)


def test_of_a_renamed_family_too() -> None:
    model = tiny_transformers("gpt_neox")
    whole, trimmed = runner_of(model), runner_of(model, token_ids=KEPT)
    torch.testing.assert_close(logits_of(trimmed), logits_of(whole)[:, list(KEPT)], rtol=1e-5, atol=1e-6)
