"""Serves the verifier over gRPC: decodes requests, runs steps, encodes replies."""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import grpc

from specinfer.engine.host import Host, HostStep
from specinfer.errors import FaultError, SpecInferError
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.service.metrics import Observing
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import Tracer, service_step
from specinfer.system.log_lines import about
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc
from verifier_svc.metrics import CacheView, VerifierMetrics
from verifier_svc.requests import HostedRequests, encode_drafts, encode_verdict, made_trees

log = logging.getLogger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True, slots=True)
class _Step:
    """A message's reply, and the steps that served it."""

    reply: verifier_pb2.VerifyReply
    steps: Sequence[HostStep] = ()
    refused: int = 0
    """Number of entries that were refused before their step."""


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    def __init__(
        self,
        host: Host,
        thread: EngineThread,
        metrics: VerifierMetrics,
        description: verifier_pb2.DescribeVerifierReply,
        tracer: Tracer | None = None,
    ) -> None:
        """Serve a host; all its calls run on `thread`."""
        self._host, self._engine, self._thread = host, host.verifier, thread
        self._requests = HostedRequests(host)
        self._metrics, self._description, self._tracer = metrics, description, tracer
        self._observing, self._fence = Observing(), Fence()
        self._faults = 0
        """Number of internal faults that the metrics have counted."""
        metrics.describe(description)
        metrics.show_memory(self._engine.runner.memory)
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
        """Serve a message; an internal fault forgets its requests."""
        try:
            if not self._admit(request.fence):
                self._observing(self._metrics.fenced_steps.add)
                return _Step(self._reply(request.step_id, fenced=True))
            with service_step(self._tracer, "verifier", request.traceparent, len(request.entries)):
                return self._serve(request)
        except Exception as error:
            log.exception("a step of %d requests failed; they are forgotten", len(request.entries))
            return self._failed(request, error)

    def _admit(self, fence: int) -> bool:
        """Return whether a message's lease has not ended.

        A new lease forgets every request: its gateway sends all contexts again.
        """
        standing = self._fence.admit(fence)
        if standing is Standing.NEW and (forgotten := self._engine.release_all()):
            log.info("lease %d is new: the %d requests of earlier leases are forgotten", fence, forgotten)
        return standing is not Standing.STALE

    def _serve(self, request: verifier_pb2.VerifyRequest) -> _Step:
        decoded = self._requests.decode(request, self._unknown_layers(request.feature_layers))
        steps = self._host.run(decoded.plan, decoded.grant, lambda: self._thread.waiting)
        first, *more = steps
        self._requests.note(first)
        entries = self._verdicts(first, decoded.verdicts(first))
        reply = self._reply(request.step_id, entries, round(first.verify_s * 1e6))
        speculators = len(self._description.resident.speculators)
        if (drafts := encode_drafts(first, speculators)) is not None:
            reply.drafts.CopyFrom(drafts)
        reply.more.extend(
            verifier_pb2.GrantedStep(
                entries=self._verdicts(step, step.verdicts.items()),
                compute_us=round(step.verify_s * 1e6),
                drafts=encode_drafts(step, speculators),
            )
            for step in more
        )
        return _Step(reply, steps, len(decoded.refused))

    def _unknown_layers(self, layers: Sequence[int]) -> SpecInferError | None:
        """Return the error if the model cannot return these layers' hidden states."""
        try:
            self._engine.runner.check_layers(layers)
        except SpecInferError as error:
            return error
        return None

    def _verdicts(
        self, step: HostStep, verdicts: Iterable[tuple[str, Verdict]]
    ) -> list[verifier_pb2.Verdict]:
        """Encode verdicts; a request fails if its verdict cannot be encoded."""
        trees = made_trees(step)
        return [self._encoded(name, verdict, trees.get(name)) for name, verdict in verdicts]

    def _encoded(self, request_id: str, verdict: Verdict, tree: TokenTree | None) -> verifier_pb2.Verdict:
        try:
            return encode_verdict(request_id, verdict, tree)
        except Exception as error:
            log.exception("a verdict could not be encoded; its request fails", extra=about(request_id))
            self._recover([request_id])
            return encode_verdict(request_id, Verdict.refused(FaultError("internal error", error)))

    def _failed(self, request: verifier_pb2.VerifyRequest, error: Exception) -> _Step:
        """Forget the requests of a failed step; return a reply with errors.

        A single request gets ERROR. Several get EXHAUSTED, as any may be the cause: the gateway retries for a
        limited time.
        """
        ids = [entry.request_id for entry in request.entries]
        self._recover(ids)
        message = f"internal error: {type(error).__name__}"
        status = EntryStatus.ERROR if len(ids) == 1 else EntryStatus.EXHAUSTED
        verdict = Verdict(status, message)
        return _Step(self._reply(request.step_id, [encode_verdict(name, verdict) for name in ids]))

    def _recover(self, request_ids: Sequence[str]) -> None:
        self._observing(self._metrics.failed_steps.add)
        try:
            self._engine.abandon(request_ids)
            self._requests.forget(request_ids)
        except Exception:  # the stream must survive for the other requests
            log.exception("requests of a failed step could not be forgotten; their caches may be wrong")

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

    def _conclude(self, done: _Step) -> None:
        try:
            self._host.conclude(done.steps)
        except Exception:
            log.exception("concluding a step failed; its %d requests are forgotten", len(done.reply.entries))
            self._recover([verdict.request_id for verdict in done.reply.entries])
        self._observing(lambda: self._observe(done))

    def _observe(self, done: _Step) -> None:
        faults = self._engine.faults + self._host.failed_steps
        if faults > self._faults:
            self._faults = faults
            self._metrics.failed_steps.add()
        if self._engine.runner.parallel is not None:
            self._metrics.observe_stages(self._engine.runner.parallel.stage_seconds)
        masks = self._engine.masks
        self._metrics.observe_masks(masks.seconds, masks.deferred, self._engine.shortened)
        self._metrics.messages.add()
        for step in done.steps:
            if step.jobs:
                self._metrics.observe(step)
        if done.refused:
            self._metrics.refused(done.refused)
        self._observe_cache()

    async def Describe(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Context
    ) -> verifier_pb2.DescribeVerifierReply:
        """Return the model, its limits and the costs of its passes."""
        return self._description

    async def Release(self, request: common_pb2.ReleaseRequest, context: Context) -> common_pb2.ReleaseReply:
        """Forget requests, unless the sender's lease has ended."""
        released = await self._thread.call(self._release, request.fence, list(request.request_ids))
        return common_pb2.ReleaseReply(released=released)

    def _release(self, fence: int, request_ids: Sequence[str]) -> int:
        released = 0
        if self._admit(fence):
            released = self._engine.release(request_ids)
            self._requests.forget(request_ids)
        self._observing(self._observe_cache)
        return released

    def _observe_cache(self) -> None:
        cache = self._engine.runner.cache
        self._metrics.cache.observe(
            CacheView(
                self._engine.cached_requests,
                cache.capacity_tokens,
                cache.free_tokens,
                cache.pool.queried_tokens,
                cache.pool.shared_tokens,
                cache.pool.restored_tokens,
                self._engine.evicted_tokens,
            )
        )


class Standing(Enum):
    """State of the lease that a message carries."""

    CURRENT = "current"
    """The latest lease."""
    NEW = "new"
    """A later lease than all before: all cached requests are obsolete."""
    STALE = "stale"
    """An earlier lease, which has ended: the message is refused."""


class Fence:
    """Refuses messages of gateways whose lease of the verifier has ended.

    A verifier serves one gateway at a time (docs/protocol.md, "Ownership"). Each lease has a higher number than all
    earlier leases, and every message carries its sender's number. So a gateway that was paused while its lease ended
    cannot change the caches of its successor. Senders with number 0 have no lease; they are served until the first
    lease arrives.
    """

    def __init__(self) -> None:
        self.highest = 0

    def admit(self, number: int) -> Standing:
        """Return the state of a lease; lower numbers become stale."""
        if number < self.highest:
            return Standing.STALE
        if number == self.highest:
            return Standing.CURRENT
        self.highest = number
        return Standing.NEW
