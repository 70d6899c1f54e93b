"""Costs from ratios of times: a machine that changes its speed changes none of them."""

import random
from dataclasses import replace

import pytest

from specinfer.planning.choice import PLAIN, Choice
from specinfer.planning.costs import SETTLING, SIZES, RowFactors, StepCosts, seconds_of
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import DraftTime, StepReport
from specinfer.tree import TokenTree

ALONE, BOTH = frozenset({0}), frozenset({0, 1})
SETS = [BOTH, ALONE, frozenset({1})]
CURVE = PassCurve([(1, 0.010), (5, 0.012), (64, 0.1)])


def costs_of() -> StepCosts:
    costs = StepCosts(CURVE)
    costs.enrol(SETS)
    return costs


def plain(slow: float = 1.0) -> StepReport:
    return StepReport(PLAIN, 1, 1, slow * 0.010, [], slow * 0.001, {})


def trees(slow: float = 1.0, after_drafts: float = 1.0, read: int = 0) -> StepReport:
    """Return a step with trees of four nodes; `after_drafts` prolongs its pass."""
    drafts = [DraftTime(BOTH, {0: slow * 0.002, 1: slow * 0.004}, 0.0, read)]
    pass_s = slow * after_drafts * CURVE.at(5)
    return StepReport(
        Choice(BOTH, 4, 4), 1, 5, pass_s, drafts, slow * 0.001, {"a": (TokenTree.root_only(1), [])}
    )


def ratio(costs: StepCosts) -> float:
    """Return the cost of a step with four nodes over that of a plain step."""
    of_trees = CURVE.at(5) + costs.outside_pass(1, BOTH, [4])[0]
    factor = costs.factors(1).of(BOTH, SIZES[:4])[3]
    return float(of_trees * factor / (CURVE.at(1) + costs.outside_pass(1, frozenset(), [0])[0]))


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_that_changes_its_speed_changes_no_ratio(seed: int) -> None:
    """Its speed changes by a factor of up to three in every phase, and steps vary by a tenth."""
    costs, rng = costs_of(), random.Random(seed)
    for _ in range(12):
        slow = rng.uniform(1.0, 3.0)
        for step in (trees, plain):
            for _ in range(SETTLING + 4):
                costs.observe(step(slow * rng.lognormvariate(0, 0.1)), cold=False)
    assert ratio(costs) == pytest.approx((0.012 + 0.007) / 0.011, rel=0.1)


def test_what_the_sum_of_parts_does_not_explain_is_learned_from_neighbouring_steps() -> None:
    """A pass takes half as long again after drafts; only whole steps show it."""
    costs = costs_of()
    for _ in range(6):
        for step in (lambda: trees(after_drafts=1.5), plain):
            for _ in range(SETTLING + 4):
                costs.observe(step(), cold=False)
    assert ratio(costs) == pytest.approx((1.5 * 0.012 + 0.007) / 0.011, rel=0.1)


def test_the_first_steps_after_a_change_of_speculators_are_not_compared() -> None:
    costs = costs_of()
    for _ in range(SETTLING):
        costs.observe(trees(), cold=False)
    for _ in range(SETTLING):
        costs.observe(plain(slow=5.0), cold=False)
    assert costs.factors(1).plain_pairs == 0
    assert costs.outside_pass(1, frozenset(), [0])[0] == 0.0


def test_comparisons_of_trees_say_nothing_about_plain_decoding() -> None:
    """After a thousand comparisons of four with six nodes, plain decoding is as uncertain as before."""
    table = RowFactors(SETS, SIZES)
    before = table.error((BOTH, 4), None)
    for _ in range(500):
        table.observe((BOTH, 4), (BOTH, 6), 1.2)
        table.observe((BOTH, 6), (BOTH, 4), 1 / 1.2)
    four, six = table.of(BOTH, SIZES[:5])[3:5]
    assert six / four == pytest.approx(1.2, rel=0.05)
    assert table.error((BOTH, 4), (BOTH, 6)) < 0.02
    assert table.error((BOTH, 4), None) > 0.8 * before


def test_a_step_shows_what_a_part_of_its_speculators_would_have_cost() -> None:
    """In one service they draft one after another, in two services at the same time; residents come before."""
    one = [DraftTime(BOTH, {0: 0.002, 1: 0.004}, 0.001)]
    two = [DraftTime(ALONE, {0: 0.002}, 0.001), DraftTime(frozenset({1}), {1: 0.004}, 0.001)]
    resident = [two[0]._replace(resident=True), two[1]]
    for drafts, both_s in ((one, 0.007), (two, 0.005), (resident, 0.008)):
        assert seconds_of(drafts, BOTH) == pytest.approx(both_s)
        assert seconds_of(drafts, ALONE) == pytest.approx(0.003)
        assert seconds_of(drafts, frozenset()) == 0.0


def test_a_model_that_was_not_asked_is_not_free() -> None:
    """Copies drafted alone: the step shows what all cost together, and neither the model's drafts nor its reading."""
    costs = costs_of()
    alone = replace(trees(), drafts=[DraftTime(BOTH, {0: 0.002}, 0.0)])
    for _ in range(40):
        costs.observe(trees(), cold=False)
        costs.observe(alone, cold=False)
    model, both = (float(costs.outside_pass(1, one, [4])[0]) for one in (frozenset({1}), BOTH))
    assert model == pytest.approx(0.005, rel=0.05)
    assert 0.003 < both < 0.007
    before = costs.read_s(1)
    costs.observe(replace(alone, drafts=[DraftTime(BOTH, {0: 0.002}, 0.0, read=1000)]), cold=False)
    assert costs.read_s(1) == before
    assert costs.read_s(0) < before / 2, "copies read at once"
    costs.observe(replace(trees(), overhead_s=2.0), cold=False)
    assert costs.read_s(1) > 3 * before, "the model reads later what it missed"
    assert (
        costs.reading_of(frozenset({0}), {0: 1000, 1: 1000}) < 0.1 < costs.reading_of(BOTH, {0: 0, 1: 1000})
    )
    assert float(costs.outside_pass(1, BOTH, [4])[0]) == pytest.approx(both, rel=0.05)


def test_reading_is_charged_by_the_token_and_not_to_drafts() -> None:
    costs = costs_of()
    for _ in range(20):
        costs.observe(trees(), cold=False)
    before = costs.outside_pass(1, BOTH, [4])[0]
    for _ in range(20):
        reading = trees(read=100)
        reading = StepReport(
            *(reading.choice, 1, 5, reading.pass_s),
            [reading.drafts[0]._replace(wire_s=0.05)],
            *(reading.overhead_s, reading.outcomes),
        )
        costs.observe(reading, cold=False)
    assert costs.outside_pass(1, BOTH, [4])[0] == before
    assert costs.read_s(0) + costs.read_s(1) == pytest.approx(0.0005, rel=0.1)


def test_steps_of_speculators_that_left_are_ignored() -> None:
    """Timings of the former pool have no place among the factors of the new one."""
    costs = costs_of()
    for _ in range(SETTLING + 2):
        costs.observe(trees(), cold=False)
    costs.enrol([frozenset({7})])
    for step in (trees, plain):
        for _ in range(SETTLING + 2):
            costs.observe(step(), cold=False)
    assert costs.factors(1).plain_pairs == 0


def test_refused_and_cold_steps_teach_nothing() -> None:
    costs = costs_of()
    for _ in range(20):
        costs.observe(StepReport(Choice(BOTH, 4, 4), 1, 0, 0.0, [], 0.001, {}), cold=False)
        costs.observe(trees(), cold=True)
    assert (costs.timed, costs.pace) == ({}, 1.0)
