"""Kinds of SSM are read, sized and told as they are."""

from typing import Any

import pytest

from benchmarks.drafts.kinds_report import kinds_markdown
from benchmarks.ssm_kinds import Kind, matrix_parameters, spread, with_speed
from specinfer.errors import InvalidInputError
from specinfer.model.weights.config import from_transformers
from tests.tiny_models import tiny_transformers


def test_kinds_are_read() -> None:
    assert Kind.read("first 15, int4:smollm2-135m,layers=15,weights=int4") == Kind(
        "first 15, int4", "smollm2-135m", 15, "int4"
    )
    for bad in ("name", "name:", "n:m,layers=x", "n:m,weights=int3", "n:m,depth=4"):
        with pytest.raises(InvalidInputError, match="kind = "):
            Kind.read(bad)


@pytest.mark.parametrize("family", ["llama", "llama-untied", "opt", "gpt_neox"])
def test_matrices_are_counted_and_lookups_are_not(family: str) -> None:
    model = tiny_transformers(family)
    tied = model.config.tie_word_embeddings
    looked_up = ("embed_positions",) if tied else ("embed_positions", "embed_tokens", "embed_in")
    counted = sum(
        tensor.numel()
        for name, tensor in model.named_parameters()
        if tensor.dim() == 2 and not any(part in name for part in looked_up)
    )
    assert matrix_parameters(from_transformers(model.config)) == counted


def test_speed_is_of_a_whole_step() -> None:
    report: dict[str, Any] = {
        "name": "x",
        "layers": 2,
        "weights": "int4",
        "million_parameters": 3.0,
        "megabytes": 2.0,
        "top1": 50.0,
        "tokens_per_step": {4: 2.0},
        "standard_error": {4: 0.1},
    }
    passes, drafts = {0: [9.0, 10.0, 11.0], 4: [1.0, 12.0, 13.0]}, {4: [2.0, 4.0, 5.0]}
    row = with_speed(report, drafts, passes)
    assert row["speed"] == {4: 1.25}
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    whole = {"about": about, "prompts": 3, "new_tokens": 4, "pass_ms": passes, "kinds": [row]}
    whole["notes"] = ["x: made so"]
    text = kinds_markdown(whole, 7, 4)
    assert "| x | 2 | int4 | 3.0 | 2.0 | 50.0 | 2.00 ± 0.10 | 4.0 (2.0 to 5.0) | 1.25x |" in text
    assert text.endswith("\n- x: made so\n")
    assert "plain decoding takes 10.0 ms, a pass of the target 12.0 with 4 nodes" in text


def test_the_first_time_of_each_is_left_out() -> None:
    assert spread({4: [99.0, 1.0, 2.0, 3.0]}) == {4: [1.0, 2.0, 3.0]}
