"""Trace requests: queue, prefill, decode and steps are spans.

    request ----------------------------------------
      queue --- prefill ------ decode --------------
                    step ----- step ---- step ------      (draft, merge, verify, commit in each)

Only sampled requests are traced. A step has one span in the trace of each traced request; these spans are linked.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from gateway.session.totals import PHASES
from specinfer.planning.feedback import FinishedStep
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.service.tracing import Attributes, Tracer, trace_id_of, traceparent_of

if TYPE_CHECKING:
    from specinfer.service.tracing import Span


class StepTrace:
    def __init__(self, tracer: Tracer, spans: "Sequence[Span]") -> None:
        self._tracer, self._spans = tracer, spans
        self.traceparent = traceparent_of(spans[0])
        """Trace context to send to services."""

    def end(self, step: FinishedStep) -> None:
        attributes = {
            "specinfer.nodes": sum([len(tree) - 1 for tree in step.trees.values()]),
            "specinfer.accepted": sum([len(verdict.accepted) for verdict in step.verdicts.values()]),
        }
        for span in self._spans:
            for phase, (start, stop) in zip(PHASES, pairwise(step.times[1:]), strict=True):
                self._tracer.add(phase, span, start, stop)
            self._tracer.end(span, step.times.done, attributes)

    def fail(self, at: float, error: Exception) -> None:
        """End a failed step's spans at time `at`, with the error's type."""
        for span in self._spans:
            self._tracer.end(span, at, error=type(error).__name__)


class RequestTraces:
    """Open spans of traced requests."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[str, Span] = {}

    def __len__(self) -> int:
        return len(self._open)

    def arrived(self, request: GenerationRequest, now: float, traceparent: str) -> None:
        """Start a request's trace, if the request is sampled."""
        attributes: Attributes = {
            "specinfer.request_id": request.request_id,
            "specinfer.prompt_tokens": len(request.prompt),
            "specinfer.max_new_tokens": request.max_new_tokens,
        }
        span = self._tracer.begin("request", now, traceparent=traceparent, attributes=attributes)
        if span is not None:
            self._open[request.request_id] = span

    def trace_id(self, request_id: str) -> str:
        """Return the id of a request's trace; empty if not traced."""
        span = self._open.get(request_id)
        return "" if span is None else trace_id_of(span)

    def step(self, entries: Sequence[StepEntry], now: float) -> StepTrace | None:
        """Start a step's spans; return None without a traced request."""
        parents = [self._open[entry.request_id] for entry in entries if entry.request_id in self._open]
        if not parents:
            return None
        spans: list[Span] = []
        for parent in parents:
            span = self._tracer.begin(
                "step",
                now,
                traceparent=traceparent_of(parent),
                links=[other for other in parents if other is not parent],
                attributes={"specinfer.requests": len(entries)},
            )
            if span is not None:
                spans.append(span)
        return StepTrace(self._tracer, spans) if spans else None

    def ended(self, state: RequestState) -> None:
        """End a request's trace; add its queue, prefill and decode spans."""
        span = self._open.pop(state.request.request_id, None)
        if span is None or state.finish is None:
            return
        end = state.finished_at or state.queued_at
        admitted, first = state.admitted_at or end, state.first_token_at or end
        self._tracer.add("queue", span, state.queued_at, admitted)
        if state.admitted_at is not None:
            self._tracer.add("prefill", span, admitted, first)
        if state.first_token_at is not None:
            self._tracer.add("decode", span, first, end)
        attributes: Attributes = {
            "specinfer.finish_reason": state.finish.name.lower(),
            "specinfer.new_tokens": state.new_tokens,
            "specinfer.steps": state.stats.steps,
            "specinfer.accepted": state.stats.accepted,
        }
        self._tracer.end(span, end, attributes, "error" if state.finish is FinishReason.ERROR else "")

    def left(self, request_ids: Iterable[str], now: float, reason: str) -> None:
        """End the traces of requests that leave this gateway."""
        for request_id in request_ids:
            span = self._open.pop(request_id, None)
            if span is not None:
                self._tracer.end(span, now, {"specinfer.left": reason})
