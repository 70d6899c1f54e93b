"""What steps are believed to cost, from what they took."""

import random

import pytest

from gateway.planning.average import Average
from gateway.planning.latency import DraftTime, LatencyModel
from gateway.planning.pass_times import PassCurve

ONE, OTHER, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})
CURVE = PassCurve([(1, 0.008), (9, 0.010), (17, 0.012)])
APART = [ONE, OTHER]
"""Each in a service of its own."""


def step_seconds(latency: LatencyModel, batch: int, asked: frozenset[int], nodes: int) -> float:
    """What the planner expects of a step."""
    return latency.seconds_before_pass(batch, asked, APART) + float(
        latency.passes.seconds_by_nodes(batch, nodes)[nodes]
    )


def test_one_outlier_moves_an_average_little() -> None:
    average = Average()
    for _ in range(30):
        average.add(1.0)
    average.add(1000.0)
    assert 1.0 < average.value < 1.2


def test_a_step_latency_its_pass_the_slowest_draft_and_the_rest() -> None:
    latency = LatencyModel(CURVE)
    latency.observe(1, 1, 0.008, [], 0.001)
    latency.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.001}, 0), DraftTime(OTHER, {1: 0.003}, 0.001)], 0.002)
    assert step_seconds(latency, 1, frozenset(), 0) == pytest.approx(0.009)
    assert step_seconds(latency, 1, BOTH, 8) == pytest.approx(0.016)


def test_what_a_service_takes_alone_is_hoped_until_it_is_measured() -> None:
    latency = LatencyModel(CURVE)
    side_by_side = [DraftTime(ONE, {0: 0.002}, 0.002), DraftTime(OTHER, {1: 0.006}, 0.0)]
    latency.observe(1, 9, 0.010, side_by_side, 0.002)
    assert latency.draft_seconds(1, ONE, ONE, 2) == pytest.approx(0.004)
    assert latency.draft_seconds(1, ONE, ONE, 3) == pytest.approx(0.004), "of more nothing is feared"
    assert latency.draft_seconds(1, ONE, ONE) == pytest.approx(0.002), "half of it, beside nobody"
    assert latency.seconds_before_pass(1, ONE, APART) == pytest.approx(0.004)
    latency.observe(1, 9, 0.010, side_by_side[:1], 0.002)
    assert latency.draft_seconds(1, ONE, ONE) == pytest.approx(0.004), "it has cores of its own"
    assert latency.draft_seconds(1, OTHER, OTHER) == pytest.approx(0.003)


def test_what_reading_took_is_beyond_drafts_beside_as_many_services() -> None:
    latency = LatencyModel(CURVE)
    side_by_side = [DraftTime(ONE, {0: 0.002}, 0.002), DraftTime(OTHER, {1: 0.006}, 0.0)]
    latency.observe(1, 9, 0.010, side_by_side, 0.002)
    latency.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.012}, 0.002, read=100), side_by_side[1]], 0.002)
    latency.reading.follow({"a": 100})
    assert latency.seconds_to_catch_up([ONE]) == pytest.approx(0.010), "of 14 ms, 4 are drafts beside another"


def test_speculators_of_one_service_take_turns_and_share_the_wire() -> None:
    latency, both = LatencyModel(CURVE), ONE | OTHER
    latency.observe(1, 9, 0.010, [DraftTime(both, {0: 0.001, 1: 0.004}, 0.002)], 0.002)
    assert latency.draft_seconds(1, both, both) == pytest.approx(0.007)
    assert latency.draft_seconds(1, ONE, both) == pytest.approx(0.003)
    for _ in range(50):
        latency.observe(1, 9, 0.010, [DraftTime(both, {1: 0.004}, 0.001)], 0.002)
    assert latency.draft_seconds(1, both, both) == pytest.approx(0.006, rel=0.05), (
        "what the one latency stays known"
    )
    assert latency.draft_seconds(1, frozenset(), both) == 0


def test_drafts_of_a_new_batch_size_are_thought_to_take_what_the_nearest_one_does() -> None:
    latency = LatencyModel(CURVE)
    latency.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.004}, 0)], 0.002)
    latency.observe(16, 48, 0.030, [DraftTime(ONE, {0: 0.009}, 0)], 0.002)
    assert latency.draft_seconds(2, ONE, ONE) == pytest.approx(0.004, rel=0.6)
    assert latency.draft_seconds(2, ONE, ONE) < latency.draft_seconds(8, ONE, ONE)
    assert latency.draft_seconds(9, ONE, ONE) == latency.draft_seconds(16, ONE, ONE), "one power of two"
    assert latency.draft_seconds(64, ONE, ONE) == latency.draft_seconds(16, ONE, ONE), "the nearest"
    assert latency.draft_seconds(64, OTHER, OTHER) == 0, "never measured"


def test_trees_that_cost_more_or_less_than_was_said_are_found_out() -> None:
    """The verifier said 8 and 10 ms; now and then two plain steps are looked at, the
    first of them slowed down by cold caches, and trees take 14 or 8.5."""
    for tree_ms in (14.0, 8.5):
        latency, rng = LatencyModel(CURVE), random.Random(0)
        for step in range(600):
            noise = rng.lognormvariate(0, 0.05)
            tokens, ms = (1, 8.0 + (step % 30 == 0)) if step % 30 < 2 else (9, tree_ms)
            latency.observe(1, tokens, noise * ms / 1000, [], 0.001)
        passes = latency.passes
        assert passes.seconds_by_nodes(1, 8)[8] / passes.seconds_by_nodes(1, 0)[0] == pytest.approx(
            tree_ms / 8, rel=0.08
        )
        by_nodes, said = passes.seconds_by_nodes(4, 5), CURVE.at(9) - CURVE.at(4)
        at_pace = (by_nodes[5] - by_nodes[0]) / said / passes.pace
        assert at_pace == pytest.approx((tree_ms - 8) / 2, abs=0.3), "the machine is the same at other sizes"


def test_a_plain_pass_right_behind_a_draft_tells_nothing() -> None:
    """Its caches are cold: 11 ms instead of 8."""
    latency = LatencyModel(CURVE)
    for _ in range(30):
        for tokens, ms in (*[(9, 10.0)] * 20, (1, 11.0), (1, 8.0)):
            latency.observe(1, tokens, ms / 1000, [], 0.001)
    assert latency.passes.seconds_by_nodes(1, 8)[0] == pytest.approx(0.008, rel=0.02)
    assert latency.passes.seconds_by_nodes(1, 8)[8] == pytest.approx(0.010, rel=0.02)


def test_what_was_measured_on_a_slower_machine_is_compared_at_todays_pace() -> None:
    """Plain passes were measured before the machine became half as fast; trees only since."""
    latency = LatencyModel(CURVE)
    for _ in range(50):
        latency.observe(1, 1, 0.008, [], 0.001)
        latency.observe(1, 9, 0.010, [DraftTime(ONE, {0: 0.004}, 0)], 0.001)
    for _ in range(100):
        latency.observe(1, 9, 0.020, [DraftTime(ONE, {0: 0.008}, 0)], 0.002)
    assert step_seconds(latency, 1, frozenset(), 0) == pytest.approx(0.018, rel=0.1)
    assert step_seconds(latency, 1, ONE, 8) == pytest.approx(0.030, rel=0.05)
