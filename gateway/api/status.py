"""What `Generation.Status` tells of a gateway."""

from gateway.cluster.lease_manager import Keeper
from gateway.cluster.sessions import Lanes
from gateway.cluster.verifier_link import VerifierLink
from gateway.observability.metrics.speculation import Named
from gateway.observability.metrics.steps import PHASES
from gateway.observability.totals import SpeculatorTotals, Totals
from gateway.planner_state import planner_state
from gateway.services.speculator import SpeculatorService
from gateway.session.session import Lane
from gateway.store.leases import GatewayReport
from specinfer.v1 import generation_pb2, verifier_pb2

_NOTHING = SpeculatorTotals()


class StatusReporter:
    """Reads the parts of a gateway."""

    def __init__(
        self,
        gateway_id: str,
        lanes: Lanes,
        keeper: Keeper,
        target: verifier_pb2.DescribeVerifierReply,
        totals: Totals,
    ) -> None:
        """`target` describes the model as it was found at start."""
        self._gateway_id, self._lanes, self._keeper, self._target = gateway_id, lanes, keeper, target
        self._totals = totals

    def reply(self) -> generation_pb2.StatusReply:
        """The state of the system, as this gateway knows it. Planner and speculators are those of the first
        lane."""
        lanes, keeper = list(self._lanes), self._keeper
        target = lanes[0].description if lanes else self._target
        reply = generation_pb2.StatusReply(
            model=target.model,
            max_context_len=target.max_context_len,
            waiting=sum(lane.loop.scheduler.waiting for lane in lanes),
            running=sum(lane.loop.scheduler.running for lane in lanes),
            verifier_ready=any(lane.loop.verifier_ready for lane in lanes),
            steps=self._totals.steps,
            new_tokens=self._totals.tokens,
            finished=self._totals.finished,
            trees=self._totals.trees,
            drafted=self._totals.drafted,
            accepted=self._totals.accepted,
            phases=[
                generation_pb2.PhaseState(name=name, seconds=seconds)
                for name, seconds in zip(PHASES, self._totals.phases, strict=True)
            ],
            gateway_states=map(_gateway_state, keeper.renewal.alive),
            lossy=target.kv_window_tokens > 0,
            dtype=target.dtype,
            executor=target.executor,
            device=target.device,
            weights=target.weights,
            gateway_id=self._gateway_id,
            gateways=len(keeper.renewal.alive),
            redis_ready=keeper.redis_ready,
            draining=keeper.draining,
            verifiers=[self._verifier(link) for link in self._lanes.links.values()],
        )
        if lanes:
            pool = lanes[0].loop.pool
            reply.planner.CopyFrom(planner_state(lanes[0].loop.choice, pool.names))
            reply.speculators.extend(row for s in pool.services for row in self._speculators(s, pool.names))
        return reply

    def _verifier(self, link: VerifierLink) -> generation_pb2.VerifierState:
        lane: Lane | None = self._lanes.by_instance.get(link.instance_id)
        scheduler = lane.loop.scheduler if lane else None
        return generation_pb2.VerifierState(
            address=link.address,
            ready=lane.loop.verifier_ready if lane else link.description is not None,
            gateway_id=self._gateway_id if lane else link.holder,
            running=scheduler.running if scheduler else 0,
            waiting=scheduler.waiting if scheduler else 0,
        )

    def _speculators(
        self, service: SpeculatorService, known: list[str]
    ) -> list[generation_pb2.SpeculatorState]:
        """One row per speculator; of a service that is away its address, or the names it had."""
        names = [known[speculator] for speculator in service.members] or [service.address]
        numbers = service.members or [-1]
        described = service.description.speculators if service.description else ()
        drafters = [speculator.drafter for speculator in described] or [""] * len(names)
        totals = [self._totals.speculators.get(Named(service.service, name)) or _NOTHING for name in names]
        return [
            generation_pb2.SpeculatorState(
                name=name,
                drafter=drafter,
                ready=service.description is not None,
                answered=service.counters.answered,
                missed=service.counters.missed,
                failed=service.faults.drafts[number],
                service=service.address,
                drafted=total.drafted,
                accepted=total.accepted,
                wins=total.wins,
            )
            for number, name, drafter, total in zip(numbers, names, drafters, totals, strict=True)
        ]


def _gateway_state(report: GatewayReport) -> generation_pb2.GatewayState:
    return generation_pb2.GatewayState(
        gateway_id=report.gateway_id, verifiers=report.lanes, room=report.room, draining=report.draining
    )
