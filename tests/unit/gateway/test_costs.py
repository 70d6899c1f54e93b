"""What steps are believed to cost, from what they took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from gateway.__main__ import pass_curve
from gateway.costs import Average, BySize, DraftTime, PassCurve, StepCosts
from specinfer.errors import IncompatibleError
from specinfer.v1 import verifier_pb2

ONE, OTHER, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})
CURVE = PassCurve([(1, 0.008), (9, 0.010), (17, 0.012)])
APART = [ONE, OTHER]
"""Each in a service of its own."""


def test_the_curve_of_passes_interpolates_and_never_falls() -> None:
    curve = PassCurve([(16, 0.008), (1, 0.004), (8, 0.003)])
    assert curve.at(1) == curve.at(4.5) == curve.at(8) == pytest.approx(0.0035), "levelled out"
    assert curve.at(12) == pytest.approx(0.00575)
    assert curve.at(12.5) == pytest.approx(0.00575 + 0.0045 / 16)
    assert curve.at(16) == pytest.approx(0.008)
    assert curve.at(32) == pytest.approx(0.016), "in proportion"
    assert PassCurve([(4, 0.002)]).at(1) == PassCurve([(4, 0.002)]).at(4) == 0.002


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12))
def test_no_other_curve_that_never_falls_is_nearer_to_what_was_measured(seconds: list[float]) -> None:
    curve = PassCurve(enumerate(seconds, start=1))
    ours = [curve.at(tokens) for tokens in range(1, len(seconds) + 1)]
    assert ours == pytest.approx(isotonic_regression(seconds).x)


def test_a_verifier_that_tells_nothing_is_refused_and_one_that_tells_zeros_is_borne() -> None:
    with pytest.raises(IncompatibleError, match="pass_costs is empty"):
        pass_curve(verifier_pb2.DescribeVerifierReply())
    zeros = verifier_pb2.DescribeVerifierReply(pass_costs=[verifier_pb2.PassCost(tokens=1)])
    costs = StepCosts(pass_curve(zeros))
    for tokens in (1, 9, 9, 1, 1):
        costs.observe(1, tokens, 0.0, [], 0.0)
    assert costs.pass_seconds(1, 8) > 0


def test_one_outlier_moves_an_average_little() -> None:
    average = Average()
    for _ in range(30):
        average.add(1.0, clip=True)
    average.add(1000.0, clip=True)
    assert 1.0 < average.value < 1.2


def test_sizes_are_told_apart_by_powers_of_two_and_lend_to_each_other() -> None:
    known: BySize[list[int]] = BySize(list)
    known[3].append(7)
    assert known[4] == [7]
    assert known[5] == []
    assert known.nearest(16, lambda item: item[0] if item else None) == (7, 2)
    assert known.nearest(1, lambda item: None) is None


def test_a_step_costs_its_pass_the_slowest_draft_and_the_rest() -> None:
    costs = StepCosts(CURVE)
    costs.observe(1, 1, 0.008, [], 0.001)
    costs.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.001}, 0), DraftTime(OTHER, {1: 0.003}, 0.001)], 0.002)
    assert costs.step_seconds(1, frozenset(), APART, 0) == pytest.approx(0.009)
    assert costs.step_seconds(1, ONE, APART, 8) == pytest.approx(0.013)
    assert costs.step_seconds(1, BOTH, APART, 8) == pytest.approx(0.016)


def test_speculators_of_one_service_take_turns_and_share_the_wire() -> None:
    costs, both = StepCosts(CURVE), ONE | OTHER
    costs.observe(1, 9, 0.010, [DraftTime(both, {0: 0.001, 1: 0.004}, 0.002)], 0.002)
    assert costs.draft_seconds(1, both, both) == pytest.approx(0.007)
    assert costs.draft_seconds(1, ONE, both) == pytest.approx(0.003)
    for _ in range(50):
        costs.observe(1, 9, 0.010, [DraftTime(both, {1: 0.004}, 0.001)], 0.002)
    assert costs.draft_seconds(1, both, both) == pytest.approx(0.006, rel=0.05), (
        "what the one costs stays known"
    )
    assert costs.draft_seconds(1, frozenset(), both) == 0


def test_drafts_of_a_new_batch_size_are_guessed_to_take_longer() -> None:
    costs = StepCosts(CURVE)
    costs.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.004}, 0)], 0.002)
    assert 0.004 < costs.draft_seconds(4, ONE, ONE) < 0.016


def test_trees_that_cost_more_or_less_than_was_said_are_found_out() -> None:
    """The verifier said 8 and 10 ms; now and then two plain steps are looked at, the
    first of them slowed down by cold caches, and trees take 14 or 8.5."""
    for tree_ms in (14.0, 8.5):
        costs, rng = StepCosts(CURVE), random.Random(0)
        for step in range(600):
            noise = rng.lognormvariate(0, 0.05)
            tokens, ms = (1, 8.0 + (step % 30 == 0)) if step % 30 < 2 else (9, tree_ms)
            costs.observe(1, tokens, noise * ms / 1000, [], 0.001)
        ratio = costs.pass_seconds(1, 8) / costs.pass_seconds(1, 0)
        assert ratio == pytest.approx(tree_ms / 8, rel=0.08)
        said = costs.pass_seconds(4, 5) / costs.pass_seconds(4, 0) / (CURVE.at(9) / CURVE.at(4))
        assert said == pytest.approx(tree_ms / 10, rel=0.08), "the machine is the same at other batch sizes"


def test_passes_of_one_kind_tell_only_the_pace() -> None:
    costs = StepCosts(CURVE)
    for _ in range(300):
        costs.observe(1, 9, 0.030, [], 0.001)
    assert costs.pass_seconds(1, 8) == pytest.approx(0.030, rel=0.01)
    assert costs.pass_seconds(1, 0) == pytest.approx(0.024, rel=0.01), "all passes take three times as long"


def test_what_was_measured_on_a_slower_machine_is_compared_at_todays_pace() -> None:
    """Plain passes were measured before the machine became half as fast; trees only since."""
    costs = StepCosts(CURVE)
    for _ in range(50):
        costs.observe(1, 1, 0.008, [], 0.001)
        costs.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.004}, 0)], 0.001)
    for _ in range(100):
        costs.observe(1, 9, 0.020, [DraftTime(ONE, {0: 0.008}, 0)], 0.002)
    assert costs.step_seconds(1, frozenset(), APART, 0) == pytest.approx(0.018, rel=0.1)
    assert costs.step_seconds(1, ONE, APART, 8) == pytest.approx(0.030, rel=0.05)
