"""Rules for the distribution of verifiers and requests, from gateways' reports. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.store.leases import GatewayReport


class Offers:
    """Room in other gateways' reports, less what was used already.

    Without it, a gateway that reads one report twice would give away twice as many requests as the other one
    has room for, and take them back after the next report.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def fresh(self, alive: Sequence[GatewayReport]) -> list[GatewayReport]:
        """Return the reports, with no room left in used ones."""
        return [
            replace(report, room=0) if self._used.get(report.gateway_id) == report.number else report
            for report in alive
        ]

    def use(self, alive: Sequence[GatewayReport]) -> None:
        """Note that requests were given away by these reports."""
        self._used = {report.gateway_id: report.number for report in alive if report.number}


def verifiers_to_claim(known: int, driven: int, alive: Sequence[GatewayReport]) -> int:
    """Return how many more verifiers a gateway may claim.

    Its share is ceil(known / gateways that are not drained).
    """
    staying = max(1, sum(not report.draining for report in alive))
    return max(0, -(-known // staying) - driven)


def requests_to_share(me: str, waiting: int, alive: Sequence[GatewayReport]) -> int:
    """Return the number of waiting requests to give to other gateways.

    All busy gateways see the same room, so each takes an equal part of it.
    """
    other_gateways = _other_gateways(me, alive)
    room = sum(report.room for report in other_gateways)
    busy = 1 + sum(report.sessions > 0 and report.room == 0 for report in other_gateways)
    return min(waiting, -(-room // busy))


def requests_to_adopt(me: str, room: int, places: int, alive: Sequence[GatewayReport]) -> int:
    """Return how many requests without an owner a gateway takes.

    It takes as many as its queues have places for, but none beyond those that it can run at once while others
    could run them.
    """
    other_room = sum(report.room for report in _other_gateways(me, alive))
    return max(0, room if other_room else places)


def somebody_stays(me: str, alive: Sequence[GatewayReport]) -> bool:
    """Return whether another gateway stays and can claim the leases."""
    return any(report.gateway_id != me and not report.draining for report in alive)


def somebody_serves(me: str, alive: Sequence[GatewayReport]) -> bool:
    """Return whether another gateway could run a request."""
    return any(report.gateway_id != me and report.sessions and not report.draining for report in alive)


def best_session(views: Sequence[tuple[bool, int, int]]) -> int | None:
    """Return the index of the session for a new request, if any.

    In this order: sessions that can run it at once, the longest cached prefix, the fewest requests.

    Args:
        views: of each session whether it can run the request at once, its number of requests, and the cached
            tokens of the prompt.
    """
    ranked = sorted(range(len(views)), key=lambda i: (not views[i][0], -views[i][2], views[i][1]))
    return ranked[0] if ranked else None


def _other_gateways(me: str, alive: Sequence[GatewayReport]) -> list[GatewayReport]:
    """Return the other gateways with a model of this gateway."""
    own_models = {model for report in alive if report.gateway_id == me for model in report.models}
    reports = [report for report in alive if report.gateway_id != me and not report.draining]
    return [report for report in reports if not own_models or not own_models.isdisjoint(report.models)]
