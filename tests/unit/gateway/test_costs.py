"""What steps are believed to cost, from what they took."""

import pytest

from gateway.costs import Average, BySize, CostCurve, StepCosts

ONE, OTHER = frozenset({0}), frozenset({1})


def test_the_cost_curve_interpolates_and_never_falls() -> None:
    curve = CostCurve()
    assert curve.at(5) == 0
    curve.add(1, 0.004)
    curve.add(16, 0.008)
    assert curve.at(1) == pytest.approx(0.004)
    assert curve.at(8.5) == pytest.approx(0.006)
    assert curve.at(32) == pytest.approx(0.016), "in proportion"
    curve.add(8, 0.003)  # noise: more tokens do not take less time
    assert curve.at(1) == curve.at(4) == curve.at(8) == pytest.approx(0.0035)
    assert curve.at(12) == pytest.approx(0.00575)


def test_one_slow_bucket_does_not_make_all_larger_passes_dear() -> None:
    curve = CostCurve()
    curve.add(3, 0.020)  # once, by bad luck
    for _ in range(50):
        curve.add(4, 0.008)
    assert curve.at(4) < 0.0095


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
    costs = StepCosts()
    assert costs.step_seconds(1, [ONE, OTHER], 8) == 0
    costs.observe(1, 1, 0.008, {}, 0.001)
    costs.observe(1, 9, 0.010, {ONE: 0.001, OTHER: 0.004}, 0.002)
    assert costs.step_seconds(1, (), 0) == pytest.approx(0.009)
    assert costs.step_seconds(1, [ONE], 8) == pytest.approx(0.013)
    assert costs.step_seconds(1, [ONE, OTHER], 8) == pytest.approx(0.016)


def test_speculators_of_one_service_are_timed_together() -> None:
    """What was never asked for alone takes, as far as is known, what it took with others."""
    costs, both = StepCosts(), ONE | OTHER
    costs.observe(1, 9, 0.010, {both: 0.005}, 0.002)
    assert costs.draft_seconds(1, ONE) == costs.draft_seconds(1, both) == pytest.approx(0.005)
    costs.observe(1, 9, 0.010, {ONE: 0.001}, 0.002)
    assert costs.draft_seconds(1, ONE) == pytest.approx(0.001, rel=0.05)
    assert costs.draft_seconds(1, OTHER) == pytest.approx(0.005, rel=0.05)


def test_drafts_of_a_new_batch_size_are_guessed_to_take_longer() -> None:
    costs = StepCosts()
    costs.observe(1, 9, 0.010, {ONE: 0.004}, 0.002)
    assert 0.004 < costs.draft_seconds(4, ONE) < 0.016


def test_what_was_measured_on_a_slower_machine_is_compared_at_todays_pace() -> None:
    """Plain passes were measured before the machine became half as fast; trees only since."""
    costs = StepCosts()
    for _ in range(50):
        costs.observe(1, 1, 0.008, {}, 0.001)
        costs.observe(1, 9, 0.010, {ONE: 0.004}, 0.001)
    for _ in range(100):
        costs.observe(1, 9, 0.020, {ONE: 0.008}, 0.002)
    assert costs.step_seconds(1, (), 0) == pytest.approx(0.018, rel=0.1)
    assert costs.step_seconds(1, [ONE], 8) == pytest.approx(0.030, rel=0.05)
