"""Temperature, top-k, top-p and draws."""

import numpy as np
import pytest
import torch

from specinfer.errors import InvalidInputError
from specinfer.model.distributions import draw, generator, probabilities
from specinfer.sampling import SamplingParams, StreamDomain

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])


def test_temperature_divides_the_logits() -> None:
    p = probabilities(LOGITS, SamplingParams(temperature=0.5))
    torch.testing.assert_close(p, (LOGITS.double() / 0.5).softmax(-1))


def test_top_k_keeps_the_most_probable() -> None:
    p = probabilities(LOGITS, SamplingParams(top_k=2))
    torch.testing.assert_close(p, torch.tensor([2.0, 1.0, -torch.inf, -torch.inf]).double().softmax(-1))


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    full = LOGITS.double().softmax(-1)  # .64 .24 .09 .03
    p = probabilities(LOGITS, SamplingParams(top_p=0.7))
    torch.testing.assert_close(p, torch.cat([full[:2] / full[:2].sum(), torch.zeros(2).double()]))
    only_first = probabilities(LOGITS, SamplingParams(top_p=1e-6))
    assert only_first.tolist() == [1, 0, 0, 0]


def test_top_k_comes_before_top_p() -> None:
    p = probabilities(LOGITS, SamplingParams(top_k=2, top_p=0.72))
    assert p.tolist() == [1, 0, 0, 0]  # .73 of the two that are left


def test_greedy_takes_the_first_of_equals() -> None:
    p = probabilities(torch.tensor([0.0, 3.0, 3.0]), SamplingParams(temperature=0))
    assert p.tolist() == [0, 1, 0]


def test_draw_follows_the_probabilities_and_never_takes_the_impossible() -> None:
    p = np.array([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    rng = np.random.default_rng(1)
    counts = np.bincount([draw(p, rng) for _ in range(4000)], minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert abs(counts[1] / 4000 - 0.5) < 0.04  # five standard deviations


def test_streams_are_keyed_by_seed_position_and_use() -> None:
    sampling = SamplingParams(seed=7)
    first = generator(sampling, 10, StreamDomain.VERIFY).random(4)
    assert np.array_equal(first, generator(sampling, 10, StreamDomain.VERIFY).random(4))
    others = [
        generator(SamplingParams(seed=8), 10, StreamDomain.VERIFY),
        generator(sampling, 11, StreamDomain.VERIFY),
        generator(sampling, 10, StreamDomain.DRAFT),
        generator(sampling, 10, StreamDomain.DRAFT, index=1),
    ]
    assert len({tuple(rng.random(4)) for rng in others} | {tuple(first)}) == 5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_bad_values_are_named(field: str, value: float) -> None:
    with pytest.raises(InvalidInputError, match=f"{field} = {value}"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
