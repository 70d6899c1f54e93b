"""Renew leases, and claim verifiers and requests (docs/protocol.md, Ownership).

Three loops run next to the sessions' loops. `_renew` waits only for Redis, so slow verifiers never delay a renewal.
`_work` claims free verifiers and adopts unowned requests, and waits only for Redis, too. `_look` waits for DNS
lookups, and describes verifiers in separate tasks.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from gateway.cluster.rebalancing import Rebalancer
from gateway.cluster.rules import somebody_serves, somebody_stays, verifiers_to_claim
from gateway.cluster.sessions import VerifierSessions, models_of
from gateway.events import Count, Events
from gateway.settings import GatewaySettings
from gateway.store.protocol import GatewayReport, Renewal, Store
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.service.outage import Outage
from specinfer.system.log_lines import LogPace

log = logging.getLogger(__name__)
_RENEWALS_PER_LEASE = 6
"""Renewals within `lease_seconds`, so that a lease survives failed renewals."""
_LOOK_UP_S = 1.0
"""Seconds between two DNS lookups of the verifiers' addresses."""
_FIRST_LOOK_S = 2.0
"""Seconds to wait at start for the verifiers' `Describe` replies."""


class LeaseManager:
    """Renews this gateway's leases, and reads the other gateways' reports."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        sessions: VerifierSessions,
        rebalancer: Rebalancer,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        """Create a manager; `clock` returns monotonic seconds."""
        self._clock = clock
        self._settings, self._store, self._sessions = settings, store, sessions
        self._rebalancer, self._events = rebalancer, events
        self._interval_s = settings.lease_seconds / _RENEWALS_PER_LEASE
        self._redis, self._pace = Outage(store.name), LogPace()
        self._reports = 0
        self._look_now = asyncio.Event()
        self._filled = ""
        """Redis epoch in which all of this gateway's requests are stored."""
        self.renewal = Renewal("", [], [], [])
        """Outcome of the latest renewal."""
        self.draining = False

    @property
    def redis_ready(self) -> bool:
        """True if Redis answered the latest renewal."""
        return self._redis.since is None

    @property
    def ready(self) -> bool:
        """True if any gateway would serve a request submitted here now."""
        served = any(session.loop.verifier_ready for session in self._sessions)
        elsewhere = somebody_serves(self._store.gateway_id, self.renewal.alive)
        return self.redis_ready and not self.draining and (served or elsewhere)

    async def start(self) -> None:
        """Take the gateway's lease, and claim available verifiers."""
        self._rebalancer.pause(0.0)
        deadline = self._clock() + self._settings.start_timeout_seconds
        while not await self._begun(last=self._clock() > deadline):  # noqa: ASYNC110  # remote state
            await asyncio.sleep(0.05)

    async def _begun(self, last: bool) -> bool:
        """Renew the lease, describe and claim verifiers; return whether Redis and a verifier answer."""
        try:
            await self._renew_once()
            await self._sessions.describe_verifiers(_FIRST_LOOK_S, strict=True)
            if not self._sessions.known and last:
                where, seconds = self._settings.verifiers, self._settings.start_timeout_seconds
                raise UnavailableError(f"verifier at {where} is not serving after {seconds:.0f} s")
            await self._claim(strict=True)
        except UnavailableError:
            if last:
                raise
            return False
        return self._sessions.known > 0

    async def run(self) -> None:
        """Run the loops until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for loop in (self._renew, self._work, self._look):
                tasks.create_task(loop())

    async def leave(self) -> None:
        """Release all leases and requests of this gateway."""
        try:
            await self._store.resign(self._sessions.leases)
        except UnavailableError as error:
            log.warning("leases are not released, other gateways wait for their expiry: %s", error)

    async def hand_over(self) -> bool:
        """End all sessions if another gateway can continue; return whether it can."""
        self.draining = True
        await self._renew_once()
        if not somebody_stays(self._store.gateway_id, self.renewal.alive):
            return False
        await self._sessions.end_all()
        return True

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._renew_once()
            except UnavailableError as error:
                if self.redis_ready:
                    self._events.add(Count.REDIS_OUTAGES)
                self._redis.failed(error, self._clock())
            except Exception:  # a fault in one renewal must not end all leases
                log.exception("renewing the leases of gateway and verifiers failed; trying again")
                self._events.add(Count.KEEPER_FAULTS)

    async def _renew_once(self) -> None:
        renewal = await self._store.renew(self._report(), self._sessions.leases)
        if not self.redis_ready:
            self._rebalancer.pause(self._settings.lease_seconds)
            self._redis.over(self._clock())
        self.renewal = renewal
        for request_id in renewal.cancels:
            self._cancel(request_id)
        for instance_id in renewal.lost:
            await self._sessions.renew_lease(instance_id)

    def _report(self) -> GatewayReport:
        sessions = [session for session in self._sessions if session.running]
        room = 0 if self.draining else sum(session.spare for session in sessions)
        models = tuple(models_of(sessions))
        self._reports += 1
        return GatewayReport(
            self._store.gateway_id, len(sessions), room, self.draining, models, self._reports
        )

    def _cancel(self, request_id: str) -> None:
        session = self._sessions.of_request(request_id)
        if session is not None:
            session.loop.cancel(request_id)

    async def _fill(self) -> None:
        """Write this gateway's requests again if Redis lost its data."""
        epoch = self.renewal.epoch
        if self._filled not in ("", epoch):
            await self._write_again()
        self._filled = epoch

    async def _write_again(self) -> None:
        log.error("Redis lost its data; writing this gateway's requests again")
        self._events.add(Count.REDIS_LOSSES)
        self._rebalancer.pause(self._settings.lease_seconds)
        for session in list(self._sessions):
            await session.loop.persistence.write_all_again()

    async def _work(self) -> None:
        looked = 0.0
        while True:
            await asyncio.sleep(self._interval_s)
            if not self.redis_ready:
                continue
            try:
                await self._fill()
                if self._sessions.close_stopped():
                    self._look_now.set()  # a replacement of the verifier may already answer
                if self._clock() - looked > _LOOK_UP_S:
                    looked = self._clock()
                    await self._rebalancer.release_strays()
                    await self._rebalancer.abandon()
                await self._claim()
                if not self.draining:
                    await self._rebalancer.adopt(self.renewal.alive)
                await self._rebalancer.share(self.renewal.alive)
            except SpecInferError as error:
                if self._pace.due(self._clock()):
                    log.warning("claiming verifiers and requests failed; trying again: %s", error)
            except Exception:  # a fault here must not end the loop, which tries again
                if self._pace.due(self._clock()):
                    log.exception("claiming verifiers and requests failed; trying again")
                self._events.add(Count.KEEPER_FAULTS)

    async def _look(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_UP_S):
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                await self._sessions.describe_verifiers()
            except Exception:  # a fault here must not end the loop, which tries again
                if self._pace.due(self._clock()):
                    log.exception("describing verifiers failed; trying again")
                self._events.add(Count.KEEPER_FAULTS)

    async def _claim(self, strict: bool = False) -> None:
        if not self.draining:
            alive = self.renewal.alive
            await self._sessions.claim_leases(
                verifiers_to_claim(self._sessions.known, len(self._sessions), alive), strict
            )
