"""What a gateway takes and gives, from what all gateways say of themselves. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.store.leases import GatewayReport


class Offers:
    """Which room that other gateways told has been given to already.

    Without it a gateway that looks twice at one report gives twice as many requests away as the other one
    has room for, and takes them back when it says so.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def fresh(self, alive: Sequence[GatewayReport]) -> list[GatewayReport]:
        """The reports; those that were used have no room."""
        return [
            replace(report, room=0) if self._used.get(report.gateway_id) == report.number else report
            for report in alive
        ]

    def use(self, alive: Sequence[GatewayReport]) -> None:
        """Requests were given away by these reports."""
        self._used = {report.gateway_id: report.number for report in alive if report.number}


def verifiers_to_claim(known: int, own: int, alive: Sequence[GatewayReport]) -> int:
    """How many more verifiers a gateway may claim: up to its share, ceil(known / gateways that are not
    drained)."""
    staying = max(1, sum(not report.draining for report in alive))
    return max(0, -(-known // staying) - own)


def requests_to_share(me: str, waiting: int, alive: Sequence[GatewayReport]) -> int:
    """How many waiting requests a gateway gives away: as many as others could run at once, shared fairly.

    All busy gateways see the same room, so each takes an equal part of it.
    """
    others = _others(me, alive)
    room = sum(report.room for report in others)
    busy = 1 + sum(report.sessions > 0 and report.room == 0 for report in others)
    return min(waiting, -(-room // busy))


def requests_to_adopt(me: str, room: int, places: int, alive: Sequence[GatewayReport]) -> int:
    """How many requests without an owner a gateway takes: as many as its queues have places for, but none
    beyond those that it can run at once while others could run them."""
    others = sum(report.room for report in _others(me, alive))
    return max(0, room if others else places)


def somebody_stays(me: str, alive: Sequence[GatewayReport]) -> bool:
    """Whether another gateway lives that is not drained: it claims what this one gives up."""
    return any(report.gateway_id != me and not report.draining for report in alive)


def somebody_serves(me: str, alive: Sequence[GatewayReport]) -> bool:
    """Whether another gateway could run a request."""
    return any(report.gateway_id != me and report.sessions and not report.draining for report in alive)


def best_session(views: Sequence[tuple[bool, int, int]]) -> int | None:
    """Where a new request goes: the index of a session, or None if there is none.

    Args:
        views: of each session whether it can run the request at once, how many requests it has, and how many
        tokens at
            the beginning of the prompt it has read already.

    One that can run it at once goes before one that cannot; of those the one that has read most of the
    prompt; then the one with the fewest requests.
    """
    ranked = sorted(range(len(views)), key=lambda i: (not views[i][0], -views[i][2], views[i][1]))
    return ranked[0] if ranked else None


def _others(me: str, alive: Sequence[GatewayReport]) -> list[GatewayReport]:
    """The gateways that could go on with what waits here: those that serve a model that is served here."""
    mine = {model for report in alive if report.gateway_id == me for model in report.models}
    others = [report for report in alive if report.gateway_id != me and not report.draining]
    return [report for report in others if not mine or not mine.isdisjoint(report.models)]
