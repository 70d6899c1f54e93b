"""Distribution of verifiers and requests among gateways: every decision on small examples."""

import pytest

from gateway.cluster.rules import (
    Offers,
    best_session,
    requests_to_adopt,
    requests_to_share,
    somebody_serves,
    somebody_stays,
    verifiers_to_claim,
)
from gateway.store.protocol import GatewayReport


def gateways(*rooms: int | None) -> list[GatewayReport]:
    """Return gateways g0, g1, ... with room for so many requests; None: without a verifier."""
    return [GatewayReport(f"g{i}", 0 if room is None else 1, room or 0) for i, room in enumerate(rooms)]


@pytest.mark.parametrize(
    ("known", "verifiers", "alive", "more"),
    [(3, 0, 1, 3), (3, 0, 2, 2), (3, 2, 2, 0), (4, 1, 4, 0), (1, 0, 3, 1), (0, 0, 1, 0)],
)
def test_a_gateway_claims_its_share_of_the_verifiers(
    known: int, verifiers: int, alive: int, more: int
) -> None:
    assert verifiers_to_claim(known, verifiers, gateways(*[0] * alive)) == more


def test_a_draining_gateway_has_no_share() -> None:
    alive = [*gateways(0), GatewayReport("g1", 1, 0, draining=True)]
    assert verifiers_to_claim(4, 0, alive) == 4
    assert not somebody_serves("g0", alive)
    assert somebody_serves("g1", alive)
    assert not somebody_serves("g1", gateways(None, 3)), "without a session it serves nothing"
    assert somebody_stays("g1", gateways(None, 3)), "but it takes requests that are given up"
    assert not somebody_stays("g0", alive)


@pytest.mark.parametrize(
    ("waiting", "alive", "given"),
    [
        (5, gateways(0), 0),
        (5, gateways(0, 3), 3),
        (2, gateways(0, 3), 2),
        (9, gateways(0, 0, 4), 2),
        (9, gateways(0, None, 4), 4),
    ],
)
def test_waiting_requests_go_to_gateways_with_room(
    waiting: int, alive: list[GatewayReport], given: int
) -> None:
    """Each of several busy gateways gives an equal share."""
    assert requests_to_share("g0", waiting, alive) == given


def test_reported_room_is_used_once() -> None:
    offers = Offers()
    reports = [GatewayReport("g0", 1, number=4), GatewayReport("g1", 1, 3, number=9)]
    assert requests_to_share("g0", 5, offers.fresh(reports)) == 3
    offers.use(reports)
    assert requests_to_share("g0", 2, offers.fresh(reports)) == 0
    later = [reports[0], GatewayReport("g1", 1, 1, number=10)]
    assert requests_to_share("g0", 2, offers.fresh(later)) == 1
    uncounted = [reports[0], GatewayReport("g1", 1, 3)]
    offers.use(uncounted)
    assert requests_to_share("g0", 2, offers.fresh(uncounted)) == 2, "of a version that does not count"


def test_requests_are_not_given_to_gateways_that_serve_another_model() -> None:
    alive = [GatewayReport("g0", 1, 0, models=("old",)), GatewayReport("g1", 1, 3, models=("new",))]
    assert requests_to_share("g0", 5, alive) == 0
    assert requests_to_adopt("g0", 0, 100, alive) == 100, "no other gateway would take them"
    assert requests_to_share("g0", 5, [*alive, GatewayReport("g2", 1, 2, models=("new", "old"))]) == 2


def test_requests_that_were_given_away_are_not_taken_back() -> None:
    assert requests_to_adopt("g0", 0, 100, gateways(0, 3)) == 0
    assert requests_to_adopt("g0", 2, 100, gateways(2, 3)) == 2
    assert requests_to_adopt("g0", 0, 100, gateways(0, 0)) == 100, "no gateway has room: they wait here"
    assert requests_to_adopt("g0", 0, -1, gateways(0)) == 0


def test_a_request_goes_first_where_it_runs_at_once_then_where_its_prefix_is_cached() -> None:
    assert best_session([]) is None
    assert best_session([(False, 0, 64), (True, 5, 0)]) == 1
    assert best_session([(True, 1, 0), (True, 5, 32)]) == 1
    assert best_session([(True, 3, 16), (True, 2, 16)]) == 1
    assert best_session([(False, 9, 0), (False, 8, 0)]) == 1
