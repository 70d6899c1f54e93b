"""Update gauges of the system and counts of steps, twice a second."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from gateway.cluster.lease_manager import LeaseManager
from gateway.cluster.sessions import VerifierSessions
from gateway.events import Count
from gateway.observability.metrics import CacheUse, SystemView
from gateway.observability.observer import Observer, named
from gateway.session.session import VerifierSession
from gateway.session.totals import Named
from specinfer.planning.calibration import Reliability
from specinfer.system.log_lines import LogPace
from specinfer.v1 import verifier_pb2

log = logging.getLogger(__name__)
_EVERY_S = 0.5


class Gauges:
    """Updates metrics on the event loop, since scrapes run in another thread."""

    def __init__(
        self,
        observer: Observer,
        sessions: VerifierSessions,
        lease_manager: LeaseManager,
        clock: Callable[[], float],
    ) -> None:
        """Create gauges; `clock` returns monotonic seconds."""
        self._clock = clock
        self._observer, self._metrics = observer, observer.metrics
        self._sessions, self._lease_manager = sessions, lease_manager
        self._pace = LogPace()

    async def run(self) -> None:
        """Update until cancelled."""
        while True:
            try:
                self.look()
            except Exception:  # an internal fault; serving does not depend on metrics
                if self._pace.due(self._clock()):
                    log.exception("the gauges could not be updated; trying again in half a second")
                self._observer.add(Count.KEEPER_FAULTS)
            await asyncio.sleep(_EVERY_S)

    def look(self) -> None:
        """Count pending events, and update all gauges."""
        self._observer.count()
        for session in self._sessions:
            self._metrics.steps.announce(named(session.loop.pool))
        for name, (said, corrected) in reliability_by_name(self._sessions).items():
            self._metrics.steps.speculation.scores.show(name, said, corrected)
        self._metrics.system.show(self._view())

    def _view(self) -> SystemView:
        sessions, lease_manager = list(self._sessions), self._lease_manager
        ready: dict[str, bool] = {}
        for session in sessions:
            for service in session.loop.pool.records:
                ready[service.address] = service.description is not None or ready.get(service.address, False)
        return SystemView(
            running=sum(session.loop.scheduler.running for session in sessions),
            waiting=sum(session.loop.scheduler.waiting for session in sessions),
            gateway_ready=lease_manager.ready,
            redis_ready=lease_manager.redis_ready,
            gateways=len(lease_manager.renewal.alive),
            driven=len(sessions),
            verifiers=self._verifiers(),
            speculators=ready,
            cache=cache_use(sessions),
            models={_model(session.description) for session in sessions},
        )

    def _verifiers(self) -> dict[str, bool]:
        described = {address: link.description is not None for address, link in self._sessions.links.items()}
        return described | {session.link.address: session.loop.verifier_ready for session in self._sessions}


def cache_use(sessions: Sequence[VerifierSession]) -> CacheUse:
    """Return the summed use of the verifiers' caches."""
    return CacheUse(
        sum(session.loop.scheduler.cache_tokens for session in sessions),
        sum(session.description.kv_capacity_tokens for session in sessions),
        sessions[0].description.kv_block_tokens if sessions else 0,
    )


def reliability_by_name(sessions: Iterable[VerifierSession]) -> dict[Named, tuple[Reliability, Reliability]]:
    """Return by speculator the reliability of its raw and calibrated scores."""
    by_name = defaultdict[Named, list[tuple[Reliability, Reliability]]](list)
    for session in sessions:
        for number, name in enumerate(named(session.loop.pool)):
            if (parts := session.loop.machine.calibration.reliability(number)) is not None:
                by_name[name].append(parts)
    return {
        name: (
            Reliability.of_all(said for said, _ in parts),
            Reliability.of_all(corrected for _, corrected in parts),
        )
        for name, parts in by_name.items()
    }


def _model(description: verifier_pb2.DescribeVerifierReply) -> tuple[str, str, str, str, str]:
    return description.model, description.dtype, description.weights, description.executor, description.device
