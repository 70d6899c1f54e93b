"""Update gauges of the system and counts of steps, twice a second."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from gateway.cluster.lease_manager import LeaseManager
from gateway.cluster.sessions import VerifierSessions
from gateway.events import Count
from gateway.observability.metrics import SystemView
from gateway.observability.observer import Observer, named
from gateway.session.session import VerifierSession
from gateway.session.totals import LastMinute, Named
from specinfer.planning.calibration import Reliability
from specinfer.system.log_lines import LogPace

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
        self._sessions, self._view = sessions, SystemView(sessions, lease_manager)
        self._pace = LogPace()
        self.last_minute = LastMinute(clock())

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
        self.last_minute.mark(self._clock(), self._observer.totals)
        for session in self._sessions:
            self._metrics.steps.announce(named(session.loop.pool))
        for name, (said, corrected) in reliability_by_name(self._sessions).items():
            self._metrics.steps.speculation.scores.show(name, said, corrected)
        self._metrics.system.show(self._view)


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
