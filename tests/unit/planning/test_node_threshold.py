"""Nodes are kept if they gain tokens at least as fast as the step."""

import pytest

from specinfer.planning.choice import PLAIN, Choice
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.table_planner import TablePlanner
from specinfer.scheduling.limits import NodeBudget

ALONE = frozenset({0})


def test_a_node_must_be_worth_its_cost() -> None:
    """Two tokens in ten milliseconds: half a millisecond is worth a tenth of a token."""
    choice = Choice(ALONE, 3, 3, tokens=2.0, seconds=0.010, node_seconds=0.0005)
    assert choice.node_threshold == pytest.approx(0.1)
    assert choice.keeps(2, 0.1001)
    assert not choice.keeps(2, 0.0999)
    assert not choice.keeps(3, 1.0), "no more than the pass was priced for"


def test_the_threshold_of_slow_drafts_uses_the_speed_of_plain_decoding() -> None:
    slow = Choice(ALONE, 3, 3, tokens=2.0, seconds=0.1, plain_speed=200.0, node_seconds=0.0005)
    assert slow.node_threshold == pytest.approx(0.1)


def test_the_threshold_is_a_probability() -> None:
    assert Choice(ALONE, 3, 3, tokens=2.0, seconds=0.001, node_seconds=0.01).node_threshold == 1.0
    assert not PLAIN.keeps(0, 1.0)
    assert PLAIN.node_threshold == 0.0


@pytest.mark.parametrize("stairs", [False, True])
def test_a_node_costs_its_share_of_the_time_added_by_all_chosen_nodes(stairs: bool) -> None:
    """Four nodes add 4 ms to the pass, either evenly or all with the first one; more nodes add 28 ms more."""
    points = [(1, 8), (2, 12), (5, 12), (6, 40)] if stairs else [(1, 8), (5, 12), (6, 40)]
    planner = TablePlanner(PassCurve([(tokens, ms / 1000) for tokens, ms in points]), NodeBudget(16, 16))
    planner.enrol([ALONE])
    choices = (planner.choose(1, {"r": 0}) for _ in range(20))
    choice = next(choice for choice in choices if choice.speculators)
    assert choice.step_nodes == 4
    assert choice.node_seconds == pytest.approx(0.004 / 4, rel=0.01)
    assert choice.node_threshold == pytest.approx(choice.plain_speed * 0.004 / 4, rel=0.5)
