"""Protobuf in and out of the verifier engine, nothing else."""

import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import grpc

from specinfer.errors import FaultError, SpecInferError
from specinfer.service.metrics import Observing
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import Tracer, service_step
from specinfer.statuses import EntryStatus
from specinfer.system.log_lines import about
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2, verifier_pb2_grpc
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.features import with_layers
from specinfer.verification.jobs import VerifyJob, VerifyOutcome
from verifier_svc.codec import decode_entries, encode_outcome
from verifier_svc.fence import Fence, Standing
from verifier_svc.metrics import CacheView, VerifierMetrics
from verifier_svc.resident import NO_DRAFTS, NextDrafts, ResidentSpeculators

log = logging.getLogger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class _Step:
    """Jobs of a message, and their outcomes."""

    reply: verifier_pb2.VerifyReply
    jobs: Sequence[VerifyJob]
    outcomes: Sequence[VerifyOutcome]
    seconds: float
    refused: int = 0
    """Number of entries that made no job."""
    drafts: NextDrafts = NO_DRAFTS


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    """Serves `specinfer.v1.Verifier`."""

    def __init__(
        self,
        engine: VerifierEngine,
        thread: EngineThread,
        metrics: VerifierMetrics,
        description: verifier_pb2.DescribeVerifierReply,
        tracer: Tracer | None = None,
        resident: ResidentSpeculators | None = None,
    ) -> None:
        """Serve an engine on its thread; `resident` speculators draft behind its verdicts."""
        self._engine, self._thread, self._metrics = engine, thread, metrics
        self._description, self._tracer, self._resident = description, tracer, resident
        self._observing, self._fence = Observing(), Fence()
        self._faults = 0
        """Faults of the engine counted so far."""
        metrics.describe(description)
        metrics.show_memory(engine.runner.memory)
        self._observe_cache()

    async def Verify(
        self, requests: AsyncIterator[verifier_pb2.VerifyRequest], context: Context
    ) -> AsyncIterator[verifier_pb2.VerifyReply]:
        """Return one reply per request message, in order."""
        async for request in requests:
            step = await self._thread.call(self._step, request)
            yield step.reply
            await self._thread.call(self._conclude, step)  # while the reply travels

    def _step(self, request: verifier_pb2.VerifyRequest) -> _Step:
        """Serve a message; a fault of ours costs the step, not the stream."""
        try:
            if not self._admit(request.fence):
                self._observing(self._metrics.fenced_steps.inc)
                return _Step(self._reply(request.step_id, fenced=True), (), (), 0.0)
            with service_step(self._tracer, "verifier", request.traceparent, len(request.entries)):
                return self._serve(request)
        except Exception as error:
            log.exception("a step of %d requests failed", len(request.entries))
            return self._failed(request, error)

    def _admit(self, fence: int) -> bool:
        """Return whether the holder of the lease with this number is served.

        A later lease than all before it forgets every request, as its holder knows nothing of them.
        """
        standing = self._fence.admit(fence)
        if standing is Standing.NEW and (forgotten := self._engine.release_all()):
            log.info("lease %d: forgetting %d requests", fence, forgotten)
        return standing is not Standing.STALE

    def _serve(self, request: verifier_pb2.VerifyRequest) -> _Step:
        started = time.perf_counter()
        asked = list(request.feature_layers)
        wrong = self._keep_features(asked)
        resident = self._resident
        decoded = decode_entries(request.entries, wrong, resident.target_top_k if resident is not None else 0)
        jobs = [job for job in decoded if isinstance(job, VerifyJob)]
        served = self._engine.verify(jobs)
        seconds = time.perf_counter() - started
        drafts = resident.draft(request.entries, jobs, served) if resident is not None else NO_DRAFTS
        results = iter(served)
        outcomes = [item if isinstance(item, VerifyOutcome) else next(results) for item in decoded]
        if resident is not None and (resident.feature_layers or resident.target_top_k):
            pairs = zip(request.entries, outcomes, strict=True)
            outcomes = [self._as_asked(entry, outcome, asked) for entry, outcome in pairs]
        encoded = [self._encoded(each, drafts.by_request.get(each.request_id, ())) for each in outcomes]
        reply = self._reply(request.step_id, encoded, round(seconds * 1e6))
        if drafts.seconds:
            reply.draft_us, reply.draft_read_tokens = round(drafts.seconds * 1e6), drafts.tokens_read
            reply.speculator_us.extend([round(own * 1e6) for own in drafts.own_seconds])
        return _Step(reply, jobs, served, seconds, len(decoded) - len(jobs), drafts)

    def _keep_features(self, layers: Sequence[int]) -> SpecInferError | None:
        """Keep the hidden states after these layers, and those that resident speculators read.

        Returns the error of bad layers, which entries that want features get.
        """
        own = self._resident.feature_layers if self._resident is not None else ()
        try:
            self._engine.runner.keep_features(sorted({*layers, *own}) if own else layers)
        except SpecInferError as error:
            return error
        return None

    def _as_asked(
        self, entry: verifier_pb2.VerifyEntry, outcome: VerifyOutcome, layers: Sequence[int]
    ) -> VerifyOutcome:
        """Return an outcome without what only the resident speculators read."""
        top_k = tuple([row[: entry.return_top_k] for row in outcome.top_k]) if entry.return_top_k else ()
        features = with_layers(outcome.features, self._engine.runner.features.layers, layers)
        return replace(outcome, top_k=top_k, features=features)

    def _encoded(
        self, outcome: VerifyOutcome, drafts: Sequence[speculator_pb2.Draft]
    ) -> verifier_pb2.Verdict:
        """Return the message of an outcome; one that cannot be encoded ends its request."""
        try:
            return encode_outcome(outcome, drafts)
        except Exception as error:
            log.exception("an answer could not be told", extra=about(outcome.request_id))
            self._recover([outcome.request_id])
            why = FaultError("internal error", error).for_logs
            return encode_outcome(VerifyOutcome(outcome.request_id, EntryStatus.ERROR, why))

    def _failed(self, request: verifier_pb2.VerifyRequest, error: Exception) -> _Step:
        """Forget the requests of a step that failed as a whole.

        None of several is known to be the culprit, so they come again, for as long as the gateway has
        patience; one alone has failed.
        """
        ids = [entry.request_id for entry in request.entries]
        self._recover(ids)
        message = f"internal error: {type(error).__name__}"
        status = EntryStatus.ERROR if len(ids) == 1 else EntryStatus.EXHAUSTED
        outcomes = [VerifyOutcome(request_id, status, message) for request_id in ids]
        return _Step(self._reply(request.step_id, map(encode_outcome, outcomes)), (), (), 0.0)

    def _recover(self, request_ids: Sequence[str]) -> None:
        self._observing(self._metrics.failed_steps.inc)
        try:
            self._engine.abandon(request_ids)
        except Exception:  # the caches are in a state that is not understood: the stream is still of use
            log.exception("could not forget the requests of a failed step")

    def _reply(
        self,
        step_id: int,
        entries: Iterable[verifier_pb2.Verdict] = (),
        compute_us: int = 0,
        fenced: bool = False,
    ) -> verifier_pb2.VerifyReply:
        return verifier_pb2.VerifyReply(
            step_id=step_id,
            entries=entries,
            compute_us=compute_us,
            fenced=fenced,
            instance_id=self._description.instance_id,
            model_fingerprint=self._description.model_fingerprint,
        )

    def _conclude(self, step: _Step) -> None:
        try:
            self._engine.settle()
        except Exception:
            log.exception("could not settle a step of %d requests", len(step.jobs))
            self._recover([job.request_id for job in step.jobs])
        self._observing(lambda: self._observe(step))

    def _observe(self, step: _Step) -> None:
        if self._engine.faults > self._faults:
            self._faults = self._engine.faults
            self._metrics.failed_steps.inc()
        if self._engine.runner.parallel is not None:
            self._metrics.observe_stages(self._engine.runner.parallel.stage_seconds)
        masks = self._engine.masks
        self._metrics.observe_masks(masks.seconds, masks.put_off, masks.cut)
        if step.jobs:
            self._metrics.observe(step.jobs, step.outcomes, step.seconds, self._engine.passes)
        if step.refused:
            self._metrics.refused(step.refused)
        if step.drafts.outcomes:
            self._metrics.observe_drafts(step.drafts.outcomes, step.drafts.own_seconds)
        self._observe_cache()

    async def Describe(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Context
    ) -> verifier_pb2.DescribeVerifierReply:
        """Return the model and its limits."""
        return self._description

    async def Release(self, request: common_pb2.ReleaseRequest, context: Context) -> common_pb2.ReleaseReply:
        """Forget requests; none for a sender whose lease is over."""
        released = await self._thread.call(self._release, request.fence, list(request.request_ids))
        return common_pb2.ReleaseReply(released=released)

    def _release(self, fence: int, request_ids: Sequence[str]) -> int:
        released = self._engine.release(request_ids) if self._admit(fence) else 0
        self._observing(self._observe_cache)
        return released

    def _observe_cache(self) -> None:
        cache = self._engine.runner.cache
        self._metrics.observe_cache(
            CacheView(
                self._engine.held_requests,
                cache.capacity_tokens,
                cache.free_tokens,
                cache.queried_tokens,
                cache.shared_tokens,
                self._engine.evicted_tokens,
            )
        )
