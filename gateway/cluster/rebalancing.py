"""Takes requests that nobody owns, and gives away those that others could run at once (docs/protocol.md,
Ownership)."""

import logging
import time
from collections.abc import Sequence

from gateway.cluster.rules import Offers, requests_to_adopt, requests_to_share
from gateway.cluster.sessions import Lanes, models_of
from gateway.session.token_stream import Feeds
from gateway.settings import GatewaySettings
from gateway.store.leases import GatewayReport
from gateway.store.requests import RequestStore

log = logging.getLogger(__name__)
_ENDLESS_S = 1e12
"""Longer than any request waits."""
_ADOPT_AT_ONCE = 64
"""Most requests adopted at once: each takes a read, and the loops go on in between."""


class Handovers:
    """A gateway's part in that; `alive` are what the gateways that have a lease say of themselves."""

    def __init__(self, settings: GatewaySettings, store: RequestStore, lanes: Lanes, feeds: Feeds) -> None:
        self._settings, self._store, self._lanes, self._feeds = settings, store, lanes, feeds
        self._me = store.gateway_id
        self.adopt_from = 0.0
        """Not before: a Redis that comes back finds leases ended that their gateways are about to renew."""
        self._offers = Offers()
        self._strays: set[str] = set()

    def pause(self, seconds: float) -> None:
        """Adopts nothing for so long."""
        self.adopt_from = time.monotonic() + seconds

    async def adopt(self, alive: Sequence[GatewayReport]) -> None:
        """Takes requests that nobody owns, as many as its queues hold."""
        room = sum(lane.spare for lane in self._lanes)
        places = self._settings.max_waiting - sum(lane.loop.scheduler.waiting for lane in self._lanes)
        most = min(_ADOPT_AT_ONCE, requests_to_adopt(self._me, room, places, alive))
        models = models_of(lane for lane in self._lanes if lane.begun)
        if not models or most <= 0 or time.monotonic() < self.adopt_from:
            return
        records = await self._store.adopt(most, models)
        for record in records:
            await self._lanes.take(record)

    async def abandon(self) -> None:
        """Ends requests without an owner whose deadline is over, or that wait for too long, as far as there
        was time to adopt them."""
        patience_s = self._settings.verifier_patience_seconds
        in_time = time.monotonic() >= self.adopt_from + patience_s
        await self._store.abandon(patience_s if in_time else _ENDLESS_S, "no verifier was free in time")

    async def share(self, alive: Sequence[GatewayReport]) -> None:
        """Gives requests that cannot run here now to gateways that could run them at once. Room that a
        gateway told once is given to once: until it tells again, it may have been used up."""
        fresh = self._offers.fresh(alive)
        for lane in self._lanes:
            lane.loop.scheduler.admit(time.monotonic())  # what fits here only waits for the step that runs
        waiting = sum(lane.loop.scheduler.waiting for lane in self._lanes)
        most = requests_to_share(self._me, waiting, fresh)
        if most:
            self._offers.use(fresh)
        for lane in list(self._lanes):
            names = lane.loop.scheduler.last_waiting(most)
            most -= len(names)
            lane.loop.deliveries.let_go(names)
            await self._store.disown(names)

    async def give_up_strays(self) -> None:
        """Requests that are this gateway's in Redis and in no lane at two looks in a row go to whoever has
        room."""
        owned = await self._store.owned()
        strays = {name for name in owned if not self._lanes.owns(name)}
        twice, self._strays = strays & self._strays, strays
        if twice:
            log.warning("%d requests of this gateway are in no lane", len(twice))
            await self._store.disown(sorted(twice))
            self._feeds.moved(twice)
