"""Speculators pay for reading contexts: what they missed since they were last asked."""

import pytest

from specinfer.planning.latency import DraftTime, LatencyModel, Reading
from specinfer.planning.pass_times import PassCurve

ONE, OTHER = frozenset({0}), frozenset({1})
CURVE = PassCurve([(1, 0.008), (17, 0.012)])


def test_what_was_missed_is_what_came_since_speculators_were_asked() -> None:
    reading = Reading(0.0005)
    reading.observe(ONE, 100, 0.010)
    reading.follow({"a": 50, "b": 30})
    assert reading.seconds_to_catch_up(ONE) == pytest.approx(80 * 0.0001)
    reading.asked()
    assert reading.seconds_to_catch_up(ONE) == 0
    reading.follow({"a": 57, "c": 20})
    assert reading.seconds_to_catch_up(ONE) == pytest.approx((7 + 20) * 0.0001), "b has ended, c is new"
    assert reading.seconds_to_catch_up(OTHER) == pytest.approx(27 * 0.0001), "a fifth of what a pass takes"


def test_a_step_in_which_a_service_read_tells_of_reading_and_not_of_drafting() -> None:
    latency = LatencyModel(CURVE)
    for _ in range(4):  # the first three are cold
        latency.observe(1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.002}, 0.001)], 0.0)
    (before,) = latency.draft_seconds(1, ONE, ONE, [8])
    pace = latency.passes.pace
    latency.observe(1, 8, 9, 0.010, [DraftTime(ONE, {0: 0.022}, 0.001, read=200)], 0.0)
    assert latency.draft_seconds(1, ONE, ONE, [8])[0] == pytest.approx(before, rel=0.05), (
        "the pace moves a little"
    )
    latency.reading.follow({"r": 200})
    assert latency.seconds_to_catch_up([ONE]) == pytest.approx(0.020, rel=0.2 * pace)
