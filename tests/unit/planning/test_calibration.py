"""Calibration of scores: too high scores are lowered, too low ones raised."""

import numpy as np
import pytest

from specinfer.planning.calibration import Calibration
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder, merge_trees, truncate
from specinfer.tree.draws import AGREEMENT
from specinfer.tree.token_tree import distribution
from tests.support.oracle import chain
from tests.support.trees import paths


def siblings(scores: dict[int, float]) -> TokenTree:
    builder = TreeBuilder(0)
    builder.propose_points(0, list(scores), list(scores.values()))
    return builder.build()


def test_without_outcomes_scores_are_not_changed() -> None:
    tree = chain(0, [1, 2], 0.7)
    assert Calibration().correct(3, tree) is tree
    assert Calibration().beliefs() == {}


def test_scores_become_the_measured_share_of_acceptance() -> None:
    """Score 0.75 but accepted once in five; score 0.15 but accepted two times in five."""
    calibration = Calibration()
    rng = np.random.default_rng(0)
    for _ in range(3000):
        token = int(rng.choice([1, 2, 3], p=[0.2, 0.4, 0.4]))
        calibration.observe(0, siblings({1: 0.75, 2: 0.15}), [token])
    corrected = calibration.correct(0, siblings({1: 0.75, 2: 0.15, 3: 0.72})).scores
    assert corrected[1] == pytest.approx(0.2, abs=0.04)
    assert corrected[2] == pytest.approx(0.4, abs=0.06)
    assert corrected[3] == pytest.approx(corrected[1] * 0.72 / 0.75), (
        "the order within a bin is the speculator's own"
    )
    assert calibration.correct(1, siblings({1: 0.75})).scores[1] == pytest.approx(0.75), (
        "others are not touched"
    )


def test_nodes_below_a_rejected_one_do_not_count() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.observe(0, chain(0, [5, 6, 7], 0.5), [5, 9, 9])  # right, wrong, never reached
    assert calibration.correct(0, chain(0, [5], 0.5)).scores[1] == pytest.approx(0.5, abs=0.03)


def test_a_speculator_with_too_high_scores_loses_nodes_of_a_budget() -> None:
    calibration = Calibration()
    honest, boasting = chain(0, [1, 2], 0.5), chain(0, [8, 9], 0.9)
    before = merge_trees([(0, honest), (1, boasting)], 3)
    assert paths(before) == {(0,), (0, 8), (0, 8, 9)}
    for step in range(200):
        for index, tree in ((0, honest), (1, boasting)):
            calibration.observe(index, tree, [1, 2, 3] if step % 2 else [4])
    corrected = [(i, calibration.correct(i, tree)) for i, tree in ((0, honest), (1, boasting))]
    assert paths(merge_trees(corrected, 3)) == {(0,), (0, 1), (0, 1, 2)}


def drawn(tokens: list[int], speculator: int = 0) -> TokenTree:
    """Return a tree of draws, each with probability 0.25."""
    builder = TreeBuilder(0)
    q = distribution([1, 2, 3, 4], [0.25] * 4)
    builder.propose_samples(0, ProposalKind.WITHOUT_REPLACEMENT, tokens, q, speculator)
    return builder.build()


def test_draws_are_ranked_by_their_measured_acceptance() -> None:
    """First draws are always rejected, second ones right three times in four."""
    calibration = Calibration()
    for step in range(1000):
        calibration.observe_draws(drawn([3, 1, 2], 4), (2,) if step % 4 else ())
    belief = calibration.beliefs()[4]
    # a quarter each of four, a third each of three, a half each of two
    first, second, third = (share / n**0.5 for share, n in zip(AGREEMENT, (4, 3, 2), strict=True))
    assert belief(0, first) < 0.05
    assert belief(1, second) == pytest.approx(0.75, abs=0.05)
    assert belief(2, third) < 0.1, "tried in one step of four, and never right"
    assert 0 not in calibration.beliefs(), "others are not touched"
    # a cut keeps draws in order, so the first draw stays although it is never right
    (proposal,) = truncate(drawn([3, 1, 2], 4), 3, calibration.beliefs()).proposals
    assert len(proposal.children) == 2


def test_draws_that_were_not_tried_do_not_count() -> None:
    """Draws after the accepted one or below a rejected one were not tried. A point is accepted after all draws
    failed."""
    builder = TreeBuilder(0)
    builder.propose_points(0, [9], [0.5], speculator=0)
    tree = merge_trees([(0, builder.build()), (1, drawn([1, 2]))])
    first, nine = (int(np.flatnonzero(tree.token_ids == token)[0]) for token in (1, 9))
    calibration = Calibration()
    for _ in range(200):
        calibration.observe_draws(tree, (first,))
    belief = calibration.beliefs()[1]
    assert belief(0, AGREEMENT[0] * 0.5) > 0.9
    assert belief(1, AGREEMENT[1] * 0.5) == pytest.approx(AGREEMENT[1] * 0.5), "never tried"
    calibration = Calibration()
    for _ in range(200):
        calibration.observe_draws(tree, (nine,))
    belief = calibration.beliefs()[1]
    assert max(belief(place, AGREEMENT[place] * 0.5) for place in (0, 1)) < 0.1, "both were rejected"


def test_points_do_not_count_as_draws_nor_draws_as_points() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.observe(0, drawn([1]), [7])
        calibration.observe_draws(chain(0, [5], 0.5), ())
    assert calibration.correct(0, chain(0, [5], 0.5)).scores[1] == pytest.approx(0.5)
    assert calibration.beliefs()[0](0, 0.4) == pytest.approx(0.4)


def test_a_change_of_text_is_noticed() -> None:
    calibration = Calibration()
    for right in (True, False):
        for _ in range(6000):
            calibration.observe(0, chain(0, [1], 0.5), [1 if right else 2])
    assert calibration.correct(0, chain(0, [1], 0.5)).scores[1] < 0.15
