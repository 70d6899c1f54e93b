"""Typical acceptance on hand-computed cases: thresholds, longest path, ties, and bad parameters."""

import math

import pytest

from specinfer.errors import InvalidInputError
from specinfer.request.sampling import Sampling
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.acceptance import RequestRandomness
from specinfer.verification.acceptance.typical import TypicalAcceptance
from tests.support.trees import CAT, DOG, RAN, SAT, THE
from tests.unit.verification.test_acceptance import TableTarget

ANY = RequestRandomness(Sampling(), 1)


def tree() -> TokenTree:
    """Return the-+-cat-sat, the-dog-ran: nodes 1 cat, 2 sat, 3 dog, 4 ran."""
    builder = TreeBuilder(THE)
    (cat,) = builder.propose_points(0, [CAT], [0.5])
    builder.propose_points(cat, [SAT], [0.5])
    (dog,) = builder.propose_points(0, [DOG], [0.3])
    builder.propose_points(dog, [RAN], [0.5])
    built = builder.build()
    assert built.token_ids.tolist() == [THE, CAT, SAT, DOG, RAN]
    return built


def test_the_hard_threshold_decides_if_the_target_is_certain() -> None:
    """P = (0.9, 0.1) has entropy 0.325, so delta exp(-H) = 0.3 * 0.722 = 0.217 is above epsilon = 0.09."""
    target = TableTarget(
        {0: {CAT: 0.9, DOG: 0.1}, 1: {SAT: 0.05, RAN: 0.95}, 3: {RAN: 0.089, SAT: 0.911}, 4: {THE: 1.0}}
    )
    rule = TypicalAcceptance(0.09, 0.3)
    assert rule.threshold(target.probabilities(0)) == 0.09
    verdict = rule(tree(), target, ANY)
    assert verdict.accepted == (1,), "both children pass, none below them; cat is the more probable one"
    assert verdict.bonus == RAN


def test_entropy_lowers_the_threshold_if_the_target_is_uncertain() -> None:
    """For twelve nearly equal tokens exp(-H) is slightly above 1/12, and 0.3 of it is below 0.08."""
    even = dict.fromkeys(range(11), 0.08) | {11: 0.12}
    target = TableTarget({0: even, 1: {SAT: 1.0}, 2: {THE: 0.6, CAT: 0.4}, 3: {RAN: 0.02, SAT: 0.98}})
    rule = TypicalAcceptance(0.2, 0.3)
    assert 0.3 / 12 < rule.threshold(target.probabilities(0)) < 0.3 / 11
    assert rule(tree(), target, ANY).accepted == (1, 2)
    assert TypicalAcceptance(0.2, 1.0)(tree(), target, ANY).accepted == (), "0.08 is below 1/12"


def test_the_longest_path_wins_against_a_more_probable_short_one() -> None:
    target = TableTarget({0: {CAT: 0.8, DOG: 0.2}, 1: {SAT: 0.01, RAN: 0.99}, 3: {RAN: 1.0}, 4: {SAT: 1.0}})
    verdict = TypicalAcceptance(0.09, 0.3)(tree(), target, ANY)
    assert (verdict.accepted, verdict.bonus) == ((3, 4), SAT)


def test_of_paths_of_one_length_the_more_probable_wins() -> None:
    target = TableTarget(
        {0: {CAT: 0.5, DOG: 0.5}, 1: {SAT: 0.4, RAN: 0.6}, 3: {RAN: 0.7, SAT: 0.3}, 4: {THE: 1.0}}
    )
    assert TypicalAcceptance(0.09, 0.3)(tree(), target, ANY).accepted == (3, 4)


def test_a_tree_of_only_the_root_decodes_greedily() -> None:
    target = TableTarget({0: {CAT: 0.4, DOG: 0.6}})
    verdict = TypicalAcceptance(0.09, 0.3)(TokenTree.root_only(THE), target, ANY)
    assert (verdict.accepted, verdict.bonus) == ((), DOG)


def test_parameters_are_checked_and_greedy_requests_stay_lossless() -> None:
    for name, value in (("typical_epsilon", -0.1), ("typical_epsilon", math.nan), ("typical_delta", 1.5)):
        with pytest.raises(InvalidInputError, match=f"{name} = {value}:"):
            Sampling(**{name: value})
    assert Sampling(temperature=0.0, typical_epsilon=0.09).lossless
    assert not Sampling(temperature=0.7, typical_epsilon=0.09).lossless
    assert Sampling(typical_epsilon=0.09).entropy_factor == pytest.approx(0.3)
    assert Sampling(typical_epsilon=0.09, typical_delta=0.2).entropy_factor == 0.2
