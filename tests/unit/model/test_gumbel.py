"""Tokens chosen by shared noise follow P, and kernels and reference choose the same.

Statistical tests use fixed seeds and fail for p < 1e-4; with fresh seeds a right implementation would fail one of
the five cases with probability 5e-4 at most.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from specinfer.model.native.build import load_library
from specinfer.model.native.noise import native_choose, native_choose_by_logits
from specinfer.model.sampling import noise
from specinfer.model.sampling.distributions import probabilities, softmax
from specinfer.model.sampling.noise import Noise, exponentials, perturbed, reference_choice
from specinfer.request.sampling import Sampling, noise_key

P = np.array([0.4, 0.0, 0.3, 0.2, 0.1])


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    return float(stats.chisquare(counts[p > 0], p[p > 0] * counts.sum()).pvalue)


@pytest.mark.statistical
def test_chosen_tokens_follow_p_over_positions_and_over_seeds() -> None:
    over_positions = np.bincount([Noise(3, position).choose(7 * P) for position in range(20000)], minlength=5)
    over_seeds = np.bincount([Noise(seed, 3).choose(7 * P) for seed in range(20000)], minlength=5)
    for counts in (over_positions, over_seeds):
        assert counts[1] == 0
        assert chi_square(counts, P) > 1e-4


@pytest.mark.statistical
def test_choices_at_neighbouring_positions_are_independent() -> None:
    tokens = [Noise(11, position).choose(P) for position in range(30000)]
    pairs = np.bincount([5 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)], minlength=25)
    assert chi_square(pairs, np.outer(P, P).ravel()) > 1e-4


@pytest.mark.statistical
def test_noise_is_exponential_and_uncorrelated() -> None:
    """Correlation is tested between two positions."""
    tokens = np.arange(50000)
    here, there = exponentials(tokens, noise_key(5, 100)), exponentials(tokens, noise_key(5, 101))
    assert stats.kstest(here, "expon").pvalue > 1e-4
    assert stats.spearmanr(here, there).pvalue > 1e-4


def test_noise_depends_only_on_seed_position_and_token() -> None:
    tokens = np.array([9, 4, 70])
    key = noise_key(5, 100)
    assert exponentials(tokens, key).tolist() == [exponentials(np.array([t]), key)[0] for t in (9, 4, 70)]
    assert len({noise_key(seed, position) for seed in range(50) for position in range(50)}) == 2500
    assert noise_key(2**64 - 1, 2**40) < 2**64


def test_a_draft_with_the_targets_distribution_chooses_the_same_token() -> None:
    rng = np.random.default_rng(0)
    vocabulary = rng.permutation(97)
    for position in range(50):
        p = rng.dirichlet(np.full(97, 0.1))
        guess = perturbed(p[vocabulary], vocabulary, noise_key(8, position)).argmax()
        assert vocabulary[guess] == Noise(8, position).choose(p)
    assert np.isneginf(perturbed(np.array([0.0, 1.0]), np.array([3, 4]), 1)[0])


@pytest.mark.native
@pytest.mark.parametrize("size", [1, 31, 32, 33, 49152])
def test_the_kernels_choose_as_the_reference(size: int) -> None:
    load_library()
    rng = np.random.default_rng(size)
    for case in range(60):
        p = np.exp(rng.normal(size=size) * rng.uniform(0.1, 12))  # flat to peaked, unnormalised
        if case % 3 == 0:
            p[rng.random(size) < 0.9] = 0.0
        if not p.any():
            continue
        key = noise_key(size, case)
        assert native_choose(p, key) == reference_choice(p, key)
    assert native_choose(np.append(np.zeros(size), 1e-300), 1) == size, "however improbable"


@pytest.mark.native
@pytest.mark.parametrize("size", [1, 15, 31, 32, 33, 49152])
def test_the_kernels_choose_by_logits_as_the_reference_by_their_softmax(size: int) -> None:
    load_library()
    rng = np.random.default_rng(size)
    for case in range(60):
        row = (rng.normal(size=size) * rng.uniform(0.1, 12) + rng.uniform(-300, 300)).astype(np.float32)
        row[rng.random(size) < 0.3 * (case % 3)] = -np.inf
        if np.isneginf(row).all():
            continue
        key, temperature = noise_key(size, case), float(rng.choice([1e-4, 0.05, 0.8, 1.0, 4.0]))
        expected = reference_choice(softmax(row, temperature), key)
        assert native_choose_by_logits(row, temperature, key) == expected


@pytest.mark.native
@pytest.mark.parametrize(
    "sampling",
    [Sampling(0.7), Sampling(0.7, top_k=3), Sampling(1.2, top_p=0.6), Sampling(0.0)],
)
def test_choosing_by_logits_is_choosing_by_their_probabilities(sampling: Sampling) -> None:
    load_library()
    rng = np.random.default_rng(5)
    for position in range(200):
        logits = torch.from_numpy(rng.normal(size=101) * 2).float()
        noise = Noise(7, position)
        assert noise.choose_by_logits(logits, sampling) == noise.choose(probabilities(logits, sampling))


@pytest.mark.native
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 40, 49])
def test_logits_that_are_no_numbers_choose_nothing(bad: float, place: int) -> None:
    load_library()
    row = np.zeros(50, np.float32)
    row[place] = bad
    for broken in (row, np.full(50, -np.inf, np.float32)):
        with pytest.raises(ValueError, match="no token has any probability"):
            native_choose_by_logits(broken, 0.8, 1)
        with pytest.raises(ValueError, match="no token has any probability"):
            reference_choice(softmax(broken, 0.8), 1)


@pytest.mark.native
def test_without_any_probability_there_is_no_choice() -> None:
    load_library()
    for p in (np.zeros(40), np.full(3, np.nan)):
        with pytest.raises(ValueError, match="no token has any probability"):
            Noise(1, 2).choose(p)
        with pytest.raises(ValueError, match="no token has any probability"):
            reference_choice(p, 1)


def test_without_kernels_the_reference_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    load_library()
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=97)).float()

    def chosen() -> list[int]:
        places = [Noise(1, position) for position in range(20)]
        by_logits = [noise.choose_by_logits(logits, Sampling(temperature=0.7)) for noise in places]
        return [noise.choose(P) for noise in places] + by_logits

    expected = chosen()
    monkeypatch.setattr(noise, "native_choose", lambda p, key: None)
    monkeypatch.setattr(noise, "native_choose_by_logits", lambda row, temperature, key: None)
    assert chosen() == expected
