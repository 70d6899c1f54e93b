"""Temperature, top-k, top-p, min-p and draws."""

import numpy as np
import pytest
import torch

from specinfer.errors import InvalidInputError
from specinfer.model.native import noise as native
from specinfer.model.native.build import load_library
from specinfer.model.native.noise import native_softmax
from specinfer.model.sampling.distributions import (
    SMALLEST_TEMPERATURE,
    draw,
    generator,
    probabilities,
    softmax,
)
from specinfer.request.sampling import Sampling, StreamDomain

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])


def test_temperature_divides_the_logits() -> None:
    p = probabilities(LOGITS, Sampling(temperature=0.5))
    np.testing.assert_allclose(p, (LOGITS.double() / 0.5).softmax(-1), rtol=1e-6)


def test_top_k_keeps_the_most_probable() -> None:
    p = probabilities(LOGITS, Sampling(top_k=2))
    expected = torch.tensor([2.0, 1.0, -torch.inf, -torch.inf]).double().softmax(-1)
    np.testing.assert_allclose(p, expected, rtol=1e-6)


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    full = LOGITS.double().softmax(-1)  # .64 .24 .09 .03
    p = probabilities(LOGITS, Sampling(top_p=0.7))
    np.testing.assert_allclose(p, torch.cat([full[:2] / full[:2].sum(), torch.zeros(2).double()]), rtol=1e-6)
    only_first = probabilities(LOGITS, Sampling(top_p=1e-6))
    assert only_first.tolist() == [1, 0, 0, 0]


def test_top_k_comes_before_top_p() -> None:
    p = probabilities(LOGITS, Sampling(top_k=2, top_p=0.72))
    assert p.tolist() == [1, 0, 0, 0]  # .73 of the remaining two


def test_min_p_keeps_a_part_of_the_highest_probability() -> None:
    """The threshold is computed at the request's temperature, before top-k and top-p."""
    full = LOGITS.double().softmax(-1)  # .64 .24 .09 .03
    p = probabilities(LOGITS, Sampling(min_p=0.3))
    np.testing.assert_allclose(p, torch.cat([full[:2] / full[:2].sum(), torch.zeros(2).double()]), rtol=1e-6)
    hot = probabilities(LOGITS, Sampling(temperature=2.0, min_p=0.3))
    assert (hot > 0).tolist() == [True, True, True, False]
    assert probabilities(LOGITS, Sampling(min_p=0.3, top_p=0.7)).tolist() == [1, 0, 0, 0], "of what is left"
    assert probabilities(LOGITS, Sampling(min_p=1.0)).tolist() == [1, 0, 0, 0]
    np.testing.assert_array_equal(
        probabilities(LOGITS, Sampling()), probabilities(LOGITS, Sampling(min_p=0.0))
    )


def test_greedy_takes_the_first_of_equals() -> None:
    p = probabilities(torch.tensor([0.0, 3.0, 3.0]), Sampling(temperature=0))
    assert p.tolist() == [0, 1, 0]


@pytest.fixture
def kernels() -> None:
    """Load the kernels, as the native executor does."""
    load_library()


@pytest.mark.native
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("size", [1, 5, 16, 31, 49152])
@pytest.mark.parametrize("temperature", [SMALLEST_TEMPERATURE, 0.3, 0.8, 2.0])
def test_the_kernels_softmax_is_that_of_torch_and_numpy(size: int, temperature: float) -> None:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 5 - 40
    logits[size // 2] = -torch.inf if size > 1 else 3.0
    logits[size - 1] = 30.0 if size > 5 else 1.0
    p = native_softmax(logits.numpy(), temperature)
    assert p is not None
    np.testing.assert_allclose(p, (logits.double() / temperature).softmax(-1), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(p, softmax(logits.numpy(), temperature), rtol=1e-5, atol=1e-30)
    assert abs(p.sum() - 1) < 1e-6


@pytest.mark.native
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 17, 40])
def test_one_bad_logit_spoils_the_whole_row(bad: float, at: int) -> None:
    """Callers detect a broken model by looking at one probability only."""
    logits = torch.zeros(41)
    logits[at] = bad
    p = native_softmax(logits.numpy(), 0.8)
    assert p is not None
    assert np.isnan(p).all()


def test_without_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "loaded_library", lambda: None)
    p = probabilities(LOGITS, Sampling(temperature=0.5))
    np.testing.assert_allclose(p, (LOGITS.double() / 0.5).softmax(-1))


def test_draw_follows_the_probabilities_and_never_takes_the_impossible() -> None:
    p = np.array([0.0, 0.5, 0.0, 0.25, 0.25, 0.0])
    rng = np.random.default_rng(1)
    counts = np.bincount([draw(p, rng) for _ in range(4000)], minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert abs(counts[1] / 4000 - 0.5) < 0.04  # five standard deviations


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_a_nucleus_of_a_large_vocabulary_is_the_smallest_that_reaches_the_mass(
    seed: int, top_p: float
) -> None:
    """Peaked rows, for which only likely tokens are sorted, and flat rows, for which all are."""
    scale = 0.1 if seed % 2 else 4.0
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(seed)) * scale
    p = probabilities(logits, Sampling(top_p=top_p))
    ordered, index = logits.double().softmax(-1).sort(descending=True)
    count = int((ordered.cumsum(-1) < top_p).sum()) + 1
    assert set(np.flatnonzero(p)) == set(index[:count].tolist())
    np.testing.assert_allclose(p[index[:count]], ordered[:count] / ordered[:count].sum(), rtol=5e-6)


def test_draws_from_a_large_vocabulary_invert_its_distribution() -> None:
    """The cumulative sum reaches the random number at the drawn token; rows have gaps and peaks."""
    rng = np.random.default_rng(0)
    for case in range(30):
        p = rng.random(3000) ** 12
        p[rng.random(3000) < 0.9] = 0.0
        if case % 3 == 0:
            p[:600] = 0.0
        if case % 3 == 1:
            p[-700:] = 0.0
        number = float(np.random.default_rng(case).random())
        index = draw(p, np.random.default_rng(case))
        cumulative = np.cumsum(p) / p.sum()
        assert p[index] > 0
        assert cumulative[index] >= number - 1e-9
        assert (cumulative[index - 1] if index else 0.0) <= number + 1e-9
    only = np.zeros(1000)
    only[777] = 0.5
    assert draw(only, np.random.default_rng(1)) == 777


def test_streams_are_keyed_by_seed_position_and_use() -> None:
    sampling = Sampling(seed=7)
    first = generator(sampling, 10, StreamDomain.VERIFY).random(4)
    assert np.array_equal(first, generator(sampling, 10, StreamDomain.VERIFY).random(4))
    others = [
        generator(Sampling(seed=8), 10, StreamDomain.VERIFY),
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
        Sampling(**{field: value})  # type: ignore[arg-type]
