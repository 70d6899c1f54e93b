"""Build the reply of `Generation.Status`."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.api.encode import planner_state
from gateway.cluster.lease_manager import LeaseManager
from gateway.cluster.sessions import VerifierSessions
from gateway.cluster.verifier_link import VerifierLink
from gateway.session.limits import longest_request
from gateway.session.session import VerifierSession
from gateway.session.totals import PHASES, GatewayTotals, Named, Recent
from specinfer.planning.calibration import Calibration
from specinfer.remote.service import SpeculatorRecord
from specinfer.scheduling.statistics import SpeculatorCounts
from specinfer.text.chat.forms import ChatForm
from specinfer.v1 import common_pb2, generation_pb2, verifier_pb2

_NOTHING = SpeculatorCounts()
LEARNT = "ssm"
"""Drafting method of the speculators that learn (`--learn`)."""


@dataclass(frozen=True, slots=True)
class StatusReporter:
    """Collects the state of a gateway's parts."""

    gateway_id: str
    sessions: VerifierSessions
    lease_manager: LeaseManager
    target: verifier_pb2.DescribeVerifierReply
    """Description of the model."""
    totals: Callable[[], GatewayTotals]
    form: ChatForm
    """The model's formats of function calls and reasoning."""
    default_sampling: common_pb2.SamplingParams
    last_minute: Callable[[], Recent]

    def reply(self) -> generation_pb2.StatusReply:
        """Return the state of the system, as this gateway knows it.

        Fields `planner` and `speculators` are those of the gateway's first session.
        """
        sessions, lease_manager, totals = list(self.sessions), self.lease_manager, self.totals()
        target = sessions[0].description if sessions else self.target
        reply = generation_pb2.StatusReply(
            model=target.model,
            max_context_len=longest_request(target),
            waiting=sum(session.loop.scheduler.waiting for session in sessions),
            running=sum(session.loop.scheduler.running for session in sessions),
            verifier_ready=any(session.loop.verifier_ready for session in sessions),
            steps=totals.steps,
            new_tokens=totals.tokens,
            finished=totals.finished,
            trees=totals.counts.trees,
            drafted=totals.counts.drafted,
            accepted=totals.counts.accepted,
            phases=[
                generation_pb2.PhaseState(name=name, seconds=seconds)
                for name, seconds in zip(PHASES, totals.phases, strict=True)
            ],
            gateway_states=[
                generation_pb2.GatewayState(
                    gateway_id=report.gateway_id,
                    verifiers=report.sessions,
                    room=report.room,
                    draining=report.draining,
                )
                for report in lease_manager.renewal.alive
            ],
            lossy=target.kv_window_tokens > 0,
            dtype=target.dtype,
            executor=target.executor,
            device=target.device,
            weights=target.weights,
            gateway_id=self.gateway_id,
            gateways=len(lease_manager.renewal.alive),
            redis_ready=lease_manager.redis_ready,
            draining=lease_manager.draining,
            chat_form=generation_pb2.ChatForm(
                calls=self.form.calls,
                reasoning_begin=self.form.reasoning[0],
                reasoning_end=self.form.reasoning[1],
                mark_tokens=self.form.mark_tokens,
                tools=self.form.tools,
                infill=self.form.infill,
            ),
            default_sampling=self.default_sampling,
            last_minute=generation_pb2.RecentState(**self.last_minute()._asdict()),
            verifiers=[self._verifier(link) for link in self.sessions.links.values()],
        )
        if sessions:
            pool, machine = sessions[0].loop.pool, sessions[0].loop.machine
            names, calibration = pool.names, machine.calibration
            reply.planner.CopyFrom(planner_state(machine.choice, names))
            reply.speculators.extend(
                row for record in pool.records for row in self._speculators(record, names, calibration)
            )
        return reply

    def _verifier(self, link: VerifierLink) -> generation_pb2.VerifierState:
        session: VerifierSession | None = self.sessions.by_instance.get(link.instance_id)
        scheduler = session.loop.scheduler if session else None
        return generation_pb2.VerifierState(
            address=link.address,
            ready=session.loop.verifier_ready if session else link.description is not None,
            gateway_id=self.gateway_id if session else link.holder,
            running=scheduler.running if scheduler else 0,
            waiting=scheduler.waiting if scheduler else 0,
            kv_capacity_tokens=link.description.kv_capacity_tokens if link.description is not None else 0,
        )

    def _speculators(
        self, service: SpeculatorRecord, known: list[str], calibration: Calibration
    ) -> list[generation_pb2.SpeculatorState]:
        """Return a row per speculator; unavailable services keep their known names."""
        names = [known[speculator] for speculator in service.members] or [service.address]
        numbers = service.members or [-1]
        described = service.description.speculators if service.description else ()
        drafters = [(one.drafter, one.model) for one in described] or [("", "")] * len(names)
        totals = [self.totals().speculators.get(Named(service.service, name)) or _NOTHING for name in names]
        return [
            generation_pb2.SpeculatorState(
                name=name,
                drafter=drafter,
                model=model,
                ready=service.description is not None,
                answered=service.answered,
                missed=service.missed,
                failed=service.faults.drafts[number],
                service=service.address,
                drafted=total.drafted,
                accepted=total.accepted,
                wins=total.wins,
                learning=service.learning if drafter == LEARNT else None,
                **_reliability(calibration, number),
            )
            for number, name, (drafter, model), total in zip(numbers, names, drafters, totals, strict=True)
        ]


def _reliability(calibration: Calibration, speculator: int) -> dict[str, float | None]:
    """Return the reliability fields of a speculator's scores; {} if unknown."""
    reliability = calibration.reliability(speculator)
    if reliability is None:
        return {}
    said, corrected = reliability
    return {
        "calibration_error": corrected.calibration_error,
        "raw_calibration_error": said.calibration_error,
        "auc": corrected.auc,
    }
