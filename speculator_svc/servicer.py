"""gRPC servicer of the speculator engine: convert messages."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry, DraftOutcome
from specinfer.errors import FaultError, InvalidInputError, SpecInferError
from specinfer.remote.draft_codec import decode_entry, encode_outcome
from specinfer.request.statuses import EntryStatus
from specinfer.service.metrics import Observing
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import Tracer, service_step
from specinfer.system.log_lines import LogPace, about
from specinfer.training.online.replay import record
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc
from specinfer.wire.client_ids import own_id, request_id_of
from speculator_svc.metrics import SpeculatorMetrics

if TYPE_CHECKING:
    from specinfer.training.online.learner import Learner

log = logging.getLogger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class SpeculatorServicer(speculator_pb2_grpc.SpeculatorServicer):
    """Servicer of `specinfer.v1.Speculator`."""

    def __init__(
        self,
        engine: SpeculatorEngine,
        thread: EngineThread,
        metrics: SpeculatorMetrics,
        description: speculator_pb2.DescribeSpeculatorReply,
        tracer: Tracer | None = None,
        learner: "Learner | None" = None,
    ) -> None:
        self._engine, self._thread, self._metrics = engine, thread, metrics
        self._description, self._tracer, self._learner = description, tracer, learner
        self._observing = Observing()
        self._failures = DraftFailures([speculator.name for speculator in description.speculators])

    async def Draft(
        self, requests: AsyncIterator[speculator_pb2.DraftRequest], context: Context
    ) -> AsyncIterator[speculator_pb2.DraftReply]:
        """Yield one reply per request message, in order."""
        top_k = None
        async for request in requests:
            reply = await self._thread.call(self._step, request)
            if self._learner is not None and top_k != (state := self._learner.state):
                reply.learning.CopyFrom(state)
                top_k = state
            yield reply

    def _step(self, request: speculator_pb2.DraftRequest) -> speculator_pb2.DraftReply:
        """Answer a message; after an internal error, without drafts."""
        started = time.perf_counter()
        try:
            with service_step(self._tracer, "speculator", request.traceparent, len(request.entries)):
                outcomes = self._serve(request)
                entries = [_encode(outcome) for outcome in outcomes]
        except Exception as error:
            log.exception("a step of %d requests failed; they get no drafts", len(request.entries))
            entries = [_encode(outcome) for outcome in self._recover(request, error)]
        else:
            seconds = time.perf_counter() - started
            self._observing(lambda: self._metrics.observe(outcomes, seconds, self._engine.seconds))
        self._observing(self._observe_requests)
        return speculator_pb2.DraftReply(
            step_id=request.step_id,
            entries=entries,
            compute_us=round((time.perf_counter() - started) * 1e6),
            speculator_us=[round(busy_s * 1e6) for busy_s in self._engine.seconds],
            instance_id=self._description.instance_id,
        )

    def _serve(self, request: speculator_pb2.DraftRequest) -> list[DraftOutcome]:
        decoded = _decode_all(request.client, request.entries)
        if log.isEnabledFor(logging.DEBUG):
            for entry in request.entries:
                if entry.base_len == 0:
                    log.debug("request %s is first seen", entry.request_id, extra=about(entry.request_id))
        asked = [item for item in decoded if isinstance(item, DraftEntry)]
        outcomes = self._engine.draft(asked)
        self._failures.note(outcomes, time.monotonic())
        if self._learner is not None:
            record(self._learner.replay, request, outcomes)
        results = iter(outcomes)
        return [item if isinstance(item, DraftOutcome) else next(results) for item in decoded]

    def _recover(self, request: speculator_pb2.DraftRequest, error: Exception) -> list[DraftOutcome]:
        """Release the requests of a failed step; gateways send their contexts again."""
        self._observing(self._metrics.failed_steps.add)
        ids = [own_id(request.client, entry.request_id) for entry in request.entries]
        try:
            self._engine.release(ids)
        except Exception:
            log.exception("releasing the %d requests of a failed step failed; they expire later", len(ids))
        message = f"internal error: {type(error).__name__}"
        return [DraftOutcome(request_id, EntryStatus.EXHAUSTED, message) for request_id in ids]

    async def Describe(
        self, request: speculator_pb2.DescribeSpeculatorRequest, context: Context
    ) -> speculator_pb2.DescribeSpeculatorReply:
        return self._description

    async def Release(self, request: common_pb2.ReleaseRequest, context: Context) -> common_pb2.ReleaseReply:
        """Release requests of the calling client."""
        own_ids = [own_id(request.client, request_id) for request_id in request.request_ids]
        released = await self._thread.call(self._release, own_ids)
        for request_id in request.request_ids:
            log.debug("request %s is released", request_id, extra=about(request_id))
        return common_pb2.ReleaseReply(released=released)

    def _release(self, own_ids: list[str]) -> int:
        released = self._engine.release(own_ids)
        if self._learner is not None:
            self._learner.replay.end(own_ids)
        self._observing(self._observe_requests)
        return released

    def _observe_requests(self) -> None:
        self._metrics.observe_requests(self._engine.cached_requests)


def _decode_all(client: str, entries: Iterable[speculator_pb2.DraftEntry]) -> list[DraftEntry | DraftOutcome]:
    """Decode all entries; invalid entries and repeated ids give outcomes with errors."""
    decoded: list[DraftEntry | DraftOutcome] = []
    seen: set[str] = set()
    for entry in entries:
        decoded.append(_decode(client, entry, entry.request_id in seen))
        seen.add(entry.request_id)
    return decoded


def _decode(client: str, entry: speculator_pb2.DraftEntry, twice: bool) -> DraftEntry | DraftOutcome:
    try:
        if twice:
            raise InvalidInputError("request_id", entry.request_id, "is in the message twice")
        return decode_entry(own_id(client, entry.request_id), entry)
    except SpecInferError as error:
        return DraftOutcome(own_id(client, entry.request_id), EntryStatus.ERROR, error.for_logs)
    except Exception as error:
        log.exception("reading an entry failed; it gets no draft", extra=about(entry.request_id))
        reason = FaultError("internal error", error).for_logs
        return DraftOutcome(own_id(client, entry.request_id), EntryStatus.EXHAUSTED, reason)


def _encode(outcome: DraftOutcome) -> speculator_pb2.DraftResult:
    return encode_outcome(request_id_of(outcome.request_id), outcome)


class DraftFailures:
    """Count and log failures of a service's speculators."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._count: Counter[int] = Counter()
        self._paces: dict[int, LogPace] = defaultdict(LogPace)

    def note(self, outcomes: Sequence[DraftOutcome], now: float) -> None:
        """Log each speculator's latest failure, at most once per interval."""
        latest: dict[int, SpecInferError] = {}
        for outcome in outcomes:
            for speculator, draft in outcome.drafts:
                if isinstance(draft, SpecInferError):
                    self._count[speculator] += 1
                    latest[speculator] = draft
        for speculator, error in latest.items():
            if self._paces[speculator].due(now):
                log.warning(
                    "speculator %s failed to draft (%d so far): %s",
                    *(self._names[speculator], self._count[speculator], error.for_logs),
                )
