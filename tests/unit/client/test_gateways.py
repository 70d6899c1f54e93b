"""Calls are spread over the gateways that answer; one that failed is tried again."""

from collections import Counter

import grpc

from specinfer.client.errors import Failure
from specinfer.client.gateways import Gateways

AWAY = Failure(grpc.StatusCode.UNAVAILABLE, "away")


def test_streams_take_turns_and_a_gateway_that_is_back_gets_its_share() -> None:
    now = 0.0
    gateways = Gateways(("a", "b", "c"), None, lambda: now)
    assert Counter(gateways.take_turn() for _ in range(9)) == {0: 3, 1: 3, 2: 3}
    gateways.failed(1, AWAY)
    assert gateways.in_turn()[-1] == 1, "it is the last resort"
    assert Counter(gateways.take_turn() for _ in range(6)) == {0: 3, 2: 3}
    now += 1.0
    assert Counter(gateways.take_turn() for _ in range(9)) == {0: 3, 1: 3, 2: 3}


def test_a_gateway_that_fails_again_is_avoided_for_longer_until_it_answers() -> None:
    now = 0.0
    gateways = Gateways(("a", "b"), None, lambda: now)
    for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        gateways.failed(0, AWAY)
        now += seconds * 0.99
        assert gateways.in_turn() == [1, 0]
        now += seconds * 0.02
        assert set(gateways.in_turn()) == {0, 1}
        assert 0 in {gateways.take_turn(), gateways.take_turn()}
    gateways.answered(0)
    gateways.failed(0, AWAY)
    now += 1.01
    assert 0 in {gateways.take_turn(), gateways.take_turn()}


def test_refusals_of_one_call_are_no_failures_of_the_gateway_and_all_are_tried_if_all_failed() -> None:
    gateways = Gateways(("a", "b"), None, lambda: 0.0)
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
        gateways.failed(0, Failure(code, "no", retry_after_s=1.0))
    assert {gateways.take_turn(), gateways.take_turn()} == {0, 1}
    gateways.failed(0, AWAY)
    gateways.failed(1, AWAY)
    assert set(gateways.in_turn()) == {0, 1}


def test_unary_calls_do_not_take_turns_of_streams() -> None:
    """Otherwise a call that is checked first would always run at the same gateway."""
    gateways = Gateways(("a", "b"), None, lambda: 0.0)
    taken = []
    for _ in range(4):
        gateways.in_turn()
        taken.append(gateways.take_turn())
    assert Counter(taken) == {0: 2, 1: 2}
