"""Products in block floating point, which replace bfloat16 products on processors without them."""

from typing import Any

import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.model.torch import parts
from specinfer.model.torch.linear import Linear
from tests.support.tiny_models import rounds_activations, runner_of, silence_attention, tiny_transformers

pytestmark = pytest.mark.native

SHAPE = {"head_dim": 32, "hidden_size": 160, "intermediate_size": 256, "num_attention_heads": 5}
TOKENS = list(range(3, 60))


def products_only() -> Any:
    """Return a model whose attention adds nothing."""
    model = tiny_transformers("llama-untied", **SHAPE, num_key_value_heads=1).bfloat16().float()
    silence_attention(model)
    return model


def logits(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    sequence = runner.open()
    runner.forward([Segment(sequence, [1])])
    (rows,) = runner.forward([Segment(sequence, [], tokens, [-1] * len(tokens))])
    return rows


@pytest.mark.skipif(rounds_activations(), reason="the processor rounds activations to bfloat16")
def test_rounds_less_than_bfloat16_activations_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = products_only()
    model.model.embed_tokens.weight.data[:, 7] *= 30  # a channel much larger than the others
    exact = logits(runner_of(model, executor="torch", dtype="float32"), TOKENS)
    actual = logits(runner_of(model, executor="native", dtype="bfloat16"), TOKENS)

    def rounding(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return lambda x: torch.nn.functional.linear(x.bfloat16().float(), weight, bias)

    monkeypatch.setattr(parts, "make_linear", rounding)
    rounded = logits(runner_of(model, executor="torch", dtype="float32"), TOKENS)
    assert (rounded - exact).std() > 0.001 * exact.std()
    assert (actual - exact).std() < 0.5 * (rounded - exact).std()


def test_the_largest_possible_sums_do_not_overflow() -> None:
    model = products_only()
    model.model.embed_tokens.weight.data.fill_(1)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1)
        elif "mlp" in name or "lm_head" in name:
            parameter.data.fill_(1.9921875)  # all eight bits of bfloat16 are ones
    exact = logits(runner_of(model, executor="torch", dtype="float32"), [5])
    actual = logits(runner_of(model, executor="native", dtype="bfloat16"), [5])
    assert float(exact.min()) > 300
    torch.testing.assert_close(actual, exact, rtol=0.01, atol=0)


@pytest.mark.parametrize("weights", ["bf16", "q8_0", "q4_1"])
def test_nan_and_infinity_affect_only_their_row(weights: str) -> None:
    model = products_only()
    clean = logits(runner_of(model, executor="native", dtype="bfloat16", weights=weights), TOKENS)
    model.model.embed_tokens.weight.data[TOKENS[4], 100] = torch.nan
    model.model.embed_tokens.weight.data[TOKENS[9], 3] = torch.inf
    actual = logits(runner_of(model, executor="native", dtype="bfloat16", weights=weights), TOKENS)
    others = [row for row in range(len(TOKENS)) if row not in (4, 9)]
    assert not actual[[4, 9]].isfinite().any()
    assert torch.equal(actual[others], clean[others])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_infinity_affect_only_their_column(bad: float) -> None:
    model = products_only()
    clean = logits(runner_of(model, executor="native", dtype="bfloat16"), TOKENS)
    model.lm_head.weight.data[20, 100] = bad
    actual = logits(runner_of(model, executor="native", dtype="bfloat16"), TOKENS)
    others = [column for column in range(actual.shape[1]) if column != 20]
    assert not actual[:, 20].isfinite().any()
    assert torch.equal(actual[:, others], clean[:, others])
