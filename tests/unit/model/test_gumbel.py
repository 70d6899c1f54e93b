"""Choosing by shared noise: a draw from P, the same whoever makes it, in the kernels and without.

Statistical tests use fixed seeds and fail for p < 1e-4; a right implementation with fresh seeds would fail
one of the five cases with probability 5e-4 at most.
"""

import numpy as np
import pytest
from scipy import stats

from specinfer.model import gumbel
from specinfer.model.gumbel import choose, exponentials, perturbed, reference_choice
from specinfer.model.native.build import load_library
from specinfer.model.native.gumbel import native_choose
from specinfer.sampling import noise_key

P = np.array([0.4, 0.0, 0.3, 0.2, 0.1])


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    return float(stats.chisquare(counts[p > 0], p[p > 0] * counts.sum()).pvalue)


@pytest.mark.statistical
def test_what_is_chosen_follows_p_over_positions_and_over_seeds() -> None:
    over_positions = np.bincount([choose(7 * P, 3, position) for position in range(20000)], minlength=5)
    over_seeds = np.bincount([choose(7 * P, seed, 3) for seed in range(20000)], minlength=5)
    for counts in (over_positions, over_seeds):
        assert counts[1] == 0
        assert chi_square(counts, P) > 1e-4


@pytest.mark.statistical
def test_choices_at_neighbouring_positions_are_independent() -> None:
    tokens = [choose(P, 11, position) for position in range(30000)]
    pairs = np.bincount([5 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)], minlength=25)
    assert chi_square(pairs, np.outer(P, P).ravel()) > 1e-4


@pytest.mark.statistical
def test_noise_is_exponential_and_uncorrelated() -> None:
    """Over the tokens of one position, and between two positions."""
    tokens = np.arange(50000)
    here, there = exponentials(tokens, noise_key(5, 100)), exponentials(tokens, noise_key(5, 101))
    assert stats.kstest(here, "expon").pvalue > 1e-4
    assert stats.spearmanr(here, there).pvalue > 1e-4


def test_noise_hangs_on_seed_position_and_token_alone() -> None:
    tokens = np.array([9, 4, 70])
    key = noise_key(5, 100)
    assert exponentials(tokens, key).tolist() == [exponentials(np.array([t]), key)[0] for t in (9, 4, 70)]
    assert len({noise_key(seed, position) for seed in range(50) for position in range(50)}) == 2500
    assert noise_key(2**64 - 1, 2**40) < 2**64


def test_a_draft_with_the_targets_distribution_knows_what_it_will_choose() -> None:
    rng = np.random.default_rng(0)
    vocabulary = rng.permutation(97)
    for position in range(50):
        p = rng.dirichlet(np.full(97, 0.1))
        guess = perturbed(p[vocabulary], vocabulary, noise_key(8, position)).argmax()
        assert vocabulary[guess] == choose(p, 8, position)
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
def test_without_any_probability_there_is_no_choice() -> None:
    load_library()
    for p in (np.zeros(40), np.full(3, np.nan)):
        with pytest.raises(ValueError, match="no token has any probability"):
            choose(p, 1, 2)
        with pytest.raises(ValueError, match="no token has any probability"):
            reference_choice(p, 1)


def test_without_kernels_the_reference_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [choose(P, 1, position) for position in range(20)]
    monkeypatch.setattr(gumbel, "native_choose", lambda p, key: None)
    assert [choose(P, 1, position) for position in range(20)] == expected
