"""Adopt unowned requests, and give waiting requests to idle gateways.

docs/protocol.md, Ownership, describes the rules.
"""

import logging
from collections.abc import Callable, Sequence

from gateway.cluster.rules import Offers, requests_to_adopt, requests_to_share
from gateway.cluster.sessions import VerifierSessions, models_of
from gateway.settings import GatewaySettings
from gateway.store.protocol import GatewayReport, Store

log = logging.getLogger(__name__)
_ENDLESS_S = 1e12
"""Patience in seconds that never ends."""
_ADOPT_AT_ONCE = 64
"""Maximum requests adopted per call; each costs a read from Redis."""


class Rebalancer:
    """Adopts, ends and shares requests, by the reports of live gateways (`alive`)."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        sessions: VerifierSessions,
        clock: Callable[[], float],
    ) -> None:
        """Create a rebalancer; `clock` returns monotonic seconds."""
        self._settings, self._store, self._sessions, self._clock = settings, store, sessions, clock
        self._me = store.gateway_id
        self.adopt_from = 0.0
        """Time by the clock before which nothing is adopted.

        When Redis returns, leases have expired, but their gateways are about to renew them.
        """
        self._offers = Offers()
        self._strays: set[tuple[str, int]] = set()
        """(request id, adoption) of requests in no session, at the latest call."""

    def pause(self, seconds: float) -> None:
        """Adopt nothing for some seconds."""
        self.adopt_from = self._clock() + seconds

    async def adopt(self, alive: Sequence[GatewayReport]) -> None:
        """Adopt unowned requests if batches or queues have space."""
        room = sum(session.spare for session in self._sessions)
        places = self._settings.max_waiting - sum(
            session.loop.scheduler.waiting for session in self._sessions
        )
        max_count = min(_ADOPT_AT_ONCE, requests_to_adopt(self._me, room, places, alive))
        models = models_of(session for session in self._sessions if session.begun)
        if not models or max_count <= 0 or self._clock() < self.adopt_from:
            return
        records = await self._store.adopt(max_count, models)
        for record in records:
            await self._sessions.take(record)

    async def abandon(self) -> None:
        """End unowned requests after their deadline or `verifier_patience_seconds`.

        After a pause of adoption, the patience begins again.
        """
        patience_s = self._settings.verifier_patience_seconds
        in_time = self._clock() >= self.adopt_from + patience_s
        await self._store.abandon(patience_s if in_time else _ENDLESS_S, "no verifier was free in time")

    async def share(self, alive: Sequence[GatewayReport]) -> None:
        """Disown waiting requests that other gateways could run at once.

        The free capacity (`room`) in a gateway's report is used only once.
        """
        fresh = self._offers.fresh(alive)
        for session in self._sessions:
            session.loop.scheduler.admit(self._clock())  # requests that fit here stay here
        waiting = sum(session.loop.scheduler.waiting for session in self._sessions)
        max_count = requests_to_share(self._me, waiting, fresh)
        if max_count:
            self._offers.use(fresh)
        for session in list(self._sessions):
            request_ids = session.loop.scheduler.last_waiting(max_count)
            max_count -= len(request_ids)
            await self._store.disown(session.loop.persistence.release_requests(request_ids))

    async def release_strays(self) -> None:
        """Disown requests that this gateway owns in Redis but no session has.

        A request is disowned if that is so in two consecutive calls.
        """
        owned = await self._store.owned()
        strays = {item for item in owned.items() if not self._sessions.owns(item[0])}
        twice, self._strays = strays & self._strays, strays
        if twice:
            log.warning(
                "%d requests of this gateway are in no session: any gateway may adopt them", len(twice)
            )
            await self._store.disown(dict(sorted(twice)))
