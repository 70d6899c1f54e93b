"""Distribute verifiers and requests by the gateways' reports. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.store.protocol import GatewayReport


class Offers:
    """Remembers reports whose free capacity (`room`) was already used.

    Otherwise a gateway that reads one report twice would give away twice as many requests as the reporting gateway
    has room for.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def fresh(self, alive: Sequence[GatewayReport]) -> list[GatewayReport]:
        """Return the reports; used reports get room = 0."""
        return [
            replace(report, room=0) if self._used.get(report.gateway_id) == report.number else report
            for report in alive
        ]

    def use(self, alive: Sequence[GatewayReport]) -> None:
        """Mark these reports as used."""
        self._used = {report.gateway_id: report.number for report in alive if report.number}


def verifiers_to_claim(known: int, driven: int, alive: Sequence[GatewayReport]) -> int:
    """Return how many more verifiers a gateway may claim.

    A gateway's share is ceil(`known` verifiers / gateways that do not drain); it drives `driven` of them now.
    """
    staying = max(1, sum(not report.draining for report in alive))
    return max(0, -(-known // staying) - driven)


def requests_to_share(me: str, waiting: int, alive: Sequence[GatewayReport]) -> int:
    """Return the number of waiting requests to give to other gateways.

    All gateways without room see the same free capacity, so each uses an equal part.
    """
    other_gateways = _other_gateways(me, alive)
    room = sum(report.room for report in other_gateways)
    busy = 1 + sum(report.sessions > 0 and report.room == 0 for report in other_gateways)
    return min(waiting, -(-room // busy))


def requests_to_adopt(me: str, room: int, places: int, alive: Sequence[GatewayReport]) -> int:
    """Return how many unowned requests a gateway adopts.

    It adopts `room` requests, which it can run at once, while other gateways have room; else `places`, the free
    entries of its queues.
    """
    other_room = sum(report.room for report in _other_gateways(me, alive))
    return max(0, room if other_room else places)


def somebody_stays(me: str, alive: Sequence[GatewayReport]) -> bool:
    """Return whether another gateway lives and does not drain."""
    return any(report.gateway_id != me and not report.draining for report in alive)


def somebody_serves(me: str, alive: Sequence[GatewayReport]) -> bool:
    """Return whether another gateway has a session and does not drain."""
    return any(report.gateway_id != me and report.sessions and not report.draining for report in alive)


def best_session(views: Sequence[tuple[bool, int, int]]) -> int | None:
    """Return the index of the best session for a new request.

    The order is: sessions that can run it at once, longest cached prefix, fewest requests.

    Args:
        views: (can run the request at once, number of requests, cached tokens of the prompt) per session.
    """
    ranked = sorted(range(len(views)), key=lambda i: (not views[i][0], -views[i][2], views[i][1]))
    return ranked[0] if ranked else None


def _other_gateways(me: str, alive: Sequence[GatewayReport]) -> list[GatewayReport]:
    """Return reports of other undrained gateways with a model of this gateway."""
    own_models = {model for report in alive if report.gateway_id == me for model in report.models}
    reports = [report for report in alive if report.gateway_id != me and not report.draining]
    return [report for report in reports if not own_models or not own_models.isdisjoint(report.models)]
