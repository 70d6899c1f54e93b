"""The time to retry that a caller gets if the queue is full."""

import pytest

from specinfer.scheduling.queue import MAX_HINT_S, MIN_HINT_S, FinishRate


def test_the_hint_is_the_time_in_which_one_request_finishes() -> None:
    rate = FinishRate()
    rate.begin(100.0)
    for second in range(1, 5):
        rate.finish(100.0 + 2 * second)
    assert rate.hint(108.0) == pytest.approx(2.0)
    assert rate.hint(128.0) == pytest.approx(7.0), "nothing has finished since: it takes longer"


def test_only_recent_requests_count() -> None:
    rate = FinishRate()
    rate.begin(0.0)
    for second in range(100):
        rate.finish(10.0 * second)
    for half in range(64):
        rate.finish(1000.0 + half / 2)
    assert rate.hint(1031.5) == pytest.approx(0.5)
    rate.begin(5000.0)
    rate.finish(5003.0)
    assert rate.hint(5003.0) == pytest.approx(3.0), "the idle time before does not count"


def test_hints_have_bounds() -> None:
    rate = FinishRate()
    rate.begin(0.0)
    assert rate.hint(0.0) == 1.0
    assert rate.hint(1e6) == MAX_HINT_S
    for _ in range(50):
        rate.finish(1.0)
    assert rate.hint(1.0) == MIN_HINT_S
