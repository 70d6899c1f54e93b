"""Which nodes pay, by the stairs in which a pass grows."""

import pytest

from gateway.planning.node_threshold import NO_NODES, node_threshold

SPEED = 200.0
"""Tokens per second: a millisecond is threshold 0.2."""


def stairs(*milliseconds: float) -> list[float]:
    return [ms / 1000 for ms in milliseconds]


def test_a_node_must_promise_what_it_costs() -> None:
    threshold = node_threshold(stairs(8, 8.5, 9, 9.5), SPEED, 1)
    assert threshold.least == pytest.approx([0.1, 0.1, 0.1])
    assert threshold(2, 0.1001)
    assert not threshold(2, 0.0999)
    assert not threshold(3, 1.0), "no more than the pass was priced for"
    assert threshold.least_reach == pytest.approx(0.1)


def test_a_stair_is_climbed_if_those_behind_it_pay_together() -> None:
    """Three nodes are free, the fourth takes 4 ms, and the three behind it are free again."""
    threshold = node_threshold(stairs(8, 8, 8, 8, 12, 12, 12, 12), SPEED, 1)
    together = 1 + 0.85 + 0.85**2 + 0.85**3
    assert threshold.least == pytest.approx([0, 0, 0, 0.8 / together, 0, 0, 0])
    assert threshold.least_reach == pytest.approx(0.8 / 6), "what a node costs on average"


def test_chances_of_a_large_batch_fall_more_slowly() -> None:
    """Its requests' candidates are ranked together, so more of them are about as good."""
    climb = stairs(8, *[12] * 8)
    assert node_threshold(climb, SPEED, 4).least[0] == pytest.approx(
        0.8 / sum(0.85 ** (n / 4) for n in range(8))
    )


def test_what_drafters_are_told_is_a_chance() -> None:
    assert node_threshold(stairs(8, 8, 20), SPEED, 1).least_reach == 1.0
    assert node_threshold(stairs(9, 8, 8), SPEED, 1).least_reach == 0.0
    assert node_threshold(stairs(8, 9), SPEED, 1).least_reach == 0.0, "one node: any draft is one level"
    assert node_threshold(stairs(8), SPEED, 1).least_reach == 0.0
    assert not NO_NODES(0, 1.0)


def test_trees_that_make_a_pass_quicker_cost_nothing() -> None:
    """Noise, or the factor of passes with trees: a first node may seem to bring time."""
    threshold = node_threshold(stairs(9, 8, 8.5), SPEED, 1)
    assert threshold(0, 0.0)
    assert not threshold(1, 0.05)


def test_thresholds_of_large_steps_are_those_of_the_next_fewer_nodes() -> None:
    """Two thousand free nodes, then dear ones: computed at 64 counts, kept to the right size."""
    seconds = [0.01] * 1001 + [0.01 + 0.001 * n for n in range(1, 1001)]
    threshold = node_threshold(seconds, SPEED, 32)
    assert len(threshold.least) == 2000
    assert threshold(900, 0.001)
    assert not threshold(1500, 0.15)
    assert not threshold(2000, 1.0)
