"""Kernels in every type, at real model sizes, against float64."""

import pytest
import torch

from specinfer.model.gpu.attention import tree_attention
from specinfer.model.gpu.choice import choose
from specinfer.model.gpu.description import exact_bucket
from specinfer.model.sampling.noise import Noise
from specinfer.verification.target import LogitsTarget
from tests.unit.model.gpu.passes import DEVICE, SLOTS, exact_attention, planned, ragged_pass
from tests.unit.model.gpu.test_choice import CASES, task

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
"""Maximum error of one element, for normally distributed values that are rounded to the type."""


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(32, 8, 128), (9, 3, 64), (8, 8, 80)])
@pytest.mark.parametrize("splits", [1, 8])
def test_tree_attention_is_that_of_float64(
    heads: int, kv_heads: int, width: int, splits: int, dtype: torch.dtype
) -> None:
    batch = ragged_pass(splits + heads, longest=300)
    generator = torch.Generator().manual_seed(7)
    shape = (len(batch.token_ids), heads + 2 * kv_heads, width)
    new = torch.randn(shape, generator=generator).to(DEVICE, dtype).split([heads, kv_heads, kv_heads], 1)
    cache = [torch.randn((kv_heads, SLOTS, width), generator=generator).to(DEVICE, dtype) for _ in range(2)]
    expected = exact_attention(batch, new, cache)
    plan = planned(batch, exact_bucket(batch, heads // kv_heads), splits, new[0])
    out = torch.full_like(new[0].contiguous(), torch.nan)
    actual = tree_attention(*new, (cache[0], cache[1]), plan, out)
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_choices_over_a_large_vocabulary_are_those_of_the_reference(number: int) -> None:
    """64 rows of 128,256 tokens. Distributions are compared by the chosen tokens."""
    sampling = CASES[number]
    logits = torch.randn(64, 128_256, generator=torch.Generator().manual_seed(number)) * 3
    (choice,) = choose([task(logits, sampling)])
    target = LogitsTarget(logits, sampling)
    noises = [Noise(sampling.seed, 40 + row) for row in range(64)]
    expected = [
        target.best(row) if sampling.greedy else target.choose(row, noise) for row, noise in enumerate(noises)
    ]
    assert choice.tokens == expected
