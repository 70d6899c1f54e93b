"""Expected acceptance of draws before they are drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.tree import Draws, ProposalKind, TreeBuilder
from specinfer.tree.draws import AGREEMENT, draws_of
from specinfer.tree.token_tree import distribution

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
FIRST, SECOND, THIRD = AGREEMENT


def test_a_first_draw_is_judged_by_the_norm_of_q() -> None:
    assert Draws([1.0], WITHOUT).chance == pytest.approx(FIRST)
    assert Draws([0.6, 0.8 - 0.4], WITHOUT).chance == pytest.approx(FIRST * (0.36 + 0.16) ** 0.5)
    assert Draws([0.25] * 4, WITHOUT).chance == pytest.approx(FIRST * 0.5)


def test_later_draws_come_from_the_rest_and_only_after_rejections() -> None:
    draws = Draws([0.5, 0.25, 0.25], WITHOUT)
    first = draws.chance
    draws.take(0.5)  # remaining: one half each
    second = draws.chance
    assert second == pytest.approx((1 - first) * SECOND * 0.5**0.5)
    draws.take(0.25)  # remaining: one token with certainty
    assert draws.acceptance == pytest.approx(THIRD)
    draws.take(0.25)
    assert draws.chance == 0, "nothing is left to draw"


def test_with_replacement_q_stays() -> None:
    draws = Draws([0.5, 0.5], WITH)
    first = draws.chance
    draws.take(0.5)
    assert draws.chance == pytest.approx((1 - first) * SECOND * 0.5**0.5)
    draws.take(0.5)
    draws.take(0.5)
    assert draws.chance > 0


def test_beliefs_replace_expectations_of_single_draws() -> None:
    calls: list[tuple[int, float]] = []

    def belief(place: int, acceptance: float) -> float:
        calls.append((place, acceptance))
        return 0.5

    draws = Draws([0.5, 0.5], WITHOUT, belief)
    draws.take(0.5)
    assert draws.chance == pytest.approx(0.25), "half of the rest after the first draw"
    assert calls == [(0, pytest.approx(FIRST * 0.5**0.5)), (1, pytest.approx(SECOND))]


def test_the_rest_after_rounding_has_no_high_expectation() -> None:
    """After the peak of a single-precision q the remaining probability is tiny and inexact."""
    peak, tail = 0.9999999403953552, 5.9604645e-08
    draws = Draws([peak, tail, 1e-30], WITHOUT)
    draws.take(peak)
    assert draws.acceptance <= SECOND
    draws.take(tail)
    assert draws.acceptance <= THIRD


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=20), st.sampled_from([WITH, WITHOUT]), st.data())
def test_chances_fall_and_add_up_to_one_at_most(
    weights: list[float], kind: ProposalKind, data: st.DataObject
) -> None:
    q = [w / sum(weights) for w in weights]
    draws, chances = Draws(q, kind), []
    for p in data.draw(st.permutations(q)):
        chances.append(draws.chance)
        draws.take(p)
    assert all(0 <= chance <= 1 for chance in chances)
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) <= 1 + 1e-9


def test_the_expectation_of_a_draw_does_not_depend_on_its_token() -> None:
    q = distribution([4, 5, 6], [0.5, 0.3, 0.2])
    seen = []
    for order in ([4, 5], [4, 6], [5, 4]):
        builder = TreeBuilder(0)
        builder.propose_samples(0, WITHOUT, order, q)
        tree = builder.build()
        seen.append([draws.chance for _, draws in draws_of(tree.proposals[0], tree.token_ids.tolist())])
    assert seen[0] == seen[1], "the second token differs and has no effect"
    assert seen[0][0] == seen[2][0]
    assert seen[0][1] != seen[2][1], "the first token has an effect"
