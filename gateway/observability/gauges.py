"""Shows in metrics, a few times a second, what of the system answers and what this gateway holds of it."""

import asyncio
import logging
import time

from gateway.cluster.lease_manager import Keeper
from gateway.cluster.sessions import Lanes
from gateway.observability.metrics import GatewayMetrics, SystemView
from gateway.observability.observer import named
from specinfer.log_pace import LogPace
from specinfer.v1 import verifier_pb2

log = logging.getLogger(__name__)
_EVERY_S = 0.2


class Gauges:
    """Reads the parts of a gateway; a scrape, which is on another thread, must not."""

    def __init__(self, metrics: GatewayMetrics, lanes: Lanes, keeper: Keeper) -> None:
        self._metrics, self._lanes, self._keeper = metrics, lanes, keeper
        self._pace = LogPace()

    async def run(self) -> None:
        """Goes on until cancelled."""
        while True:
            try:
                self.look()
            except Exception:  # a fault of ours; nothing depends on what is shown
                if self._pace.due(time.monotonic()):
                    log.exception("metrics are not up to date")
                self._metrics.system.keeper_faults.inc()
            await asyncio.sleep(_EVERY_S)

    def look(self) -> None:
        """Shows what is so now."""
        for lane in self._lanes:
            self._metrics.steps.announce(named(lane.loop.pool))
        self._metrics.system.show(self._view())

    def _view(self) -> SystemView:
        lanes, keeper = list(self._lanes), self._keeper
        ready: dict[str, bool] = {}
        for lane in lanes:
            for service in lane.loop.pool.services:
                ready[service.address] = service.description is not None or ready.get(service.address, False)
        return SystemView(
            running=sum(lane.loop.scheduler.running for lane in lanes),
            waiting=sum(lane.loop.scheduler.waiting for lane in lanes),
            gateway_ready=keeper.ready,
            redis_ready=keeper.redis_ready,
            gateways=len(keeper.renewal.alive),
            held=len(lanes),
            verifiers=self._verifiers(),
            speculators=ready,
            models={_model(lane.description) for lane in lanes},
        )

    def _verifiers(self) -> dict[str, bool]:
        found = {address: link.description is not None for address, link in self._lanes.links.items()}
        return found | {lane.link.address: lane.loop.verifier_ready for lane in self._lanes}


def _model(told: verifier_pb2.DescribeVerifierReply) -> tuple[str, str, str, str, str]:
    return told.model, told.dtype, told.weights, told.executor, told.device
