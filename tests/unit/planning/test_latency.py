"""Costs of steps are estimated from what they took."""

import random

import pytest

from specinfer.planning.latency import DraftTime, LatencyModel
from specinfer.planning.pass_times import PassCurve, Recent

ONE, OTHER, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})
CURVE = PassCurve([(1, 0.008), (9, 0.010), (17, 0.012)])
APART = [ONE, OTHER]
"""Each in a service of its own."""


def warm(*services: frozenset[int]) -> LatencyModel:
    """A model that has seen the cold steps of plain decoding and of these services."""
    latency = LatencyModel(CURVE)
    for service in (frozenset[int](), *services):
        for _ in range(3):
            drafts = [DraftTime(service, dict.fromkeys(service, 0.05), 0.02)] if service else []
            assert not latency.observe(1, 8, 9 if service else 1, 0.05, drafts, 0.03)
    latency.observe_pass(1, 1, 0.008)  # the first one behind trees, which is not counted
    return latency


def step_seconds(latency: LatencyModel, batch: int, asked: frozenset[int], nodes: int) -> float:
    """Return what the planner expects of a step."""
    (before_s,) = latency.seconds_before_pass(batch, asked, APART, [nodes])
    return before_s + latency.passes.seconds(batch + nodes)


def draft_s(
    latency: LatencyModel,
    batch: int,
    asked: frozenset[int],
    service: frozenset[int],
    drafting: int = 1,
    nodes: int = 8,
) -> float:
    (seconds,) = latency.draft_seconds(batch, asked, service, [nodes], drafting)
    return seconds


def test_one_outlier_moves_what_is_recent_little() -> None:
    recent = Recent()
    for value in [1.0] * 30 + [1000.0]:
        recent.add(value)
    assert recent.value == 1.0


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 15, 40])
def test_recent_values_are_followed(count: int) -> None:
    recent = Recent()
    for value in range(count):
        recent.add(float(value))
    assert len(recent) == min(count, 15)
    latest = list(range(count))[-15:]
    assert latest[0] <= recent.value <= latest[len(latest) // 2]


def test_the_first_steps_are_cold_and_left_out() -> None:
    latency = warm(ONE)
    latency.observe(1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.002}, 0.001)], 0.001)
    assert step_seconds(latency, 1, ONE, 8) == pytest.approx(0.014, rel=0.01)


def test_drafts_take_what_they_do_with_as_many_nodes() -> None:
    """Two nodes take half the time of twelve; what lies between is between."""
    latency = warm(ONE)
    for nodes, seconds in ((2, 0.001), (12, 0.002)):
        latency.observe(1, nodes, 1 + nodes, CURVE.at(1 + nodes), [DraftTime(ONE, {0: seconds}, 0.0)], 0.001)
    expected = latency.draft_seconds(1, ONE, ONE, [1, 2, 4, 12, 16])
    assert expected == pytest.approx([0.001, 0.001, 0.00139, 0.002, 0.002], rel=0.01)


def test_drafts_that_were_never_measured_are_thought_to_take_a_part_of_a_pass() -> None:
    assert draft_s(warm(), 1, ONE, ONE) == pytest.approx(0.002)


def test_a_step_latency_its_pass_the_slowest_draft_and_the_rest() -> None:
    latency = warm(ONE, OTHER)
    latency.observe(1, 0, 1, 0.008, [], 0.001)
    latency.observe(
        1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.001}, 0), DraftTime(OTHER, {1: 0.003}, 0.001)], 0.002
    )
    assert step_seconds(latency, 1, frozenset(), 0) == pytest.approx(0.009)
    assert step_seconds(latency, 1, BOTH, 8) == pytest.approx(0.016)


def test_what_a_service_takes_alone_is_hoped_until_it_is_measured() -> None:
    latency = warm(ONE, OTHER)
    side_by_side = [DraftTime(ONE, {0: 0.002}, 0.002), DraftTime(OTHER, {1: 0.006}, 0.0)]
    latency.observe(1, 8, 9, 0.010, side_by_side, 0.002)
    assert draft_s(latency, 1, ONE, ONE, 2) == pytest.approx(0.004)
    assert draft_s(latency, 1, ONE, ONE, 3) == pytest.approx(0.004), "of more nothing is feared"
    assert draft_s(latency, 1, ONE, ONE) == pytest.approx(0.002), "half of it, beside nobody"
    assert latency.seconds_before_pass(1, ONE, APART, [8])[0] == pytest.approx(0.004)
    latency.observe(1, 8, 9, 0.010, side_by_side[:1], 0.002)
    assert draft_s(latency, 1, ONE, ONE) == pytest.approx(0.004), "it has cores of its own"
    assert draft_s(latency, 1, OTHER, OTHER) == pytest.approx(0.003)


def test_what_reading_took_is_beyond_drafts_beside_as_many_services() -> None:
    latency = warm(ONE, OTHER)
    side_by_side = [DraftTime(ONE, {0: 0.002}, 0.002), DraftTime(OTHER, {1: 0.006}, 0.0)]
    latency.observe(1, 8, 9, 0.010, side_by_side, 0.002)
    latency.observe(1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.012}, 0.002, read=100), side_by_side[1]], 0.002)
    latency.reading.follow({"a": 100})
    assert latency.seconds_to_catch_up([ONE]) == pytest.approx(0.010), "of 14 ms, 4 are drafts beside another"


def test_speculators_of_one_service_take_turns_and_share_the_wire() -> None:
    latency, both = warm(BOTH), ONE | OTHER
    latency.observe(1, 8, 9, 0.010, [DraftTime(both, {0: 0.001, 1: 0.004}, 0.002)], 0.002)
    assert draft_s(latency, 1, both, both) == pytest.approx(0.007)
    assert draft_s(latency, 1, ONE, both) == pytest.approx(0.003)
    for _ in range(50):
        latency.observe(1, 8, 9, 0.010, [DraftTime(both, {1: 0.004}, 0.001)], 0.002)
    assert draft_s(latency, 1, both, both) == pytest.approx(0.006, rel=0.05), (
        "what the one latency stays known"
    )
    assert draft_s(latency, 1, frozenset(), both) == 0


def test_drafts_of_a_new_batch_size_are_thought_to_take_what_the_nearest_one_does() -> None:
    latency = warm(ONE, OTHER)
    latency.observe(1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.004}, 0)], 0.002)
    latency.observe(16, 8, 48, 0.030, [DraftTime(ONE, {0: 0.009}, 0)], 0.002)
    assert draft_s(latency, 2, ONE, ONE) == pytest.approx(0.004, rel=0.6)
    assert draft_s(latency, 2, ONE, ONE) < draft_s(latency, 8, ONE, ONE)
    assert draft_s(latency, 9, ONE, ONE) == draft_s(latency, 16, ONE, ONE), "one power of two"
    assert draft_s(latency, 64, ONE, ONE) == draft_s(latency, 16, ONE, ONE), "the nearest"
    assert draft_s(latency, 64, OTHER, OTHER) == pytest.approx(0.002), "never measured"


def test_trees_that_cost_more_or_less_than_was_said_are_found_out() -> None:
    """The verifier said 8 and 10 ms; now and then two plain steps are looked at, the
    first of them slowed down by cold caches, and trees take 14 or 8.5."""
    for tree_ms in (14.0, 8.5):
        latency, rng = warm(), random.Random(0)
        for step in range(600):
            noise = rng.lognormvariate(0, 0.05)
            tokens, ms = (1, 8.0 + (step % 30 == 0)) if step % 30 < 2 else (9, tree_ms)
            latency.observe(1, tokens - 1, tokens, noise * ms / 1000, [], 0.001)
        passes = latency.passes
        assert passes.seconds(9) / passes.seconds(1) == pytest.approx(tree_ms / 8, rel=0.08)


def test_a_plain_pass_right_behind_a_draft_tells_nothing() -> None:
    """Its caches are cold: 11 ms instead of 8."""
    latency = warm(ONE, OTHER)
    for _ in range(30):
        for tokens, ms in (*[(9, 10.0)] * 20, (1, 11.0), (1, 8.0)):
            latency.observe(1, tokens - 1, tokens, ms / 1000, [], 0.001)
    assert latency.passes.seconds(1) == pytest.approx(0.008, rel=0.02)
    assert latency.passes.seconds(9) == pytest.approx(0.010, rel=0.02)


def test_what_was_measured_on_a_slower_machine_is_compared_at_todays_pace() -> None:
    """Plain passes were measured before the machine became half as fast; trees only since."""
    latency = warm(ONE, OTHER)
    for _ in range(50):
        latency.observe(1, 0, 1, 0.008, [], 0.001)
        latency.observe(1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.004}, 0)], 0.001)
    for _ in range(40):
        latency.observe(1, 8, 9, 0.020, [DraftTime(ONE, {0: 0.008}, 0)], 0.002)
    assert step_seconds(latency, 1, frozenset(), 0) == pytest.approx(0.018, rel=0.15)
    assert step_seconds(latency, 1, ONE, 8) == pytest.approx(0.030, rel=0.05)
