"""Metrics of requests: counts, latencies and refusals."""

from functools import cache

import grpc
from prometheus_client import CollectorRegistry, Counter

from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import RequestState
from specinfer.service.metrics import TO_MINUTES_S, StepCounter, StepHistogram

_CODES = (
    *("INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"),
    *("NOT_FOUND", "ALREADY_EXISTS", "INTERNAL"),
)
"""Status codes of refusals, exported with 0 from the start."""


class RequestCounters:
    """Counts requests and their tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._success = cache(
            Counter(
                "specinfer_request_success",
                "Ended requests by reason: length, stop_token, stop_string, cancelled, deadline or error.",
                ["finished_reason"],
                registry=registry,
            ).labels
        )
        self._refused = cache(
            Counter(
                "specinfer_requests_refused",
                "Generate and Attach calls refused, by gRPC status; without those over --max-calls.",
                ["code"],
                registry=registry,
            ).labels
        )
        self._prompt_tokens = StepCounter(
            "specinfer_prompt_tokens", "Prompt tokens of requests with a first token.", (), registry
        )
        self._generation_tokens = StepCounter(
            "specinfer_generation_tokens", "Generated tokens, stored and shown to clients.", (), registry
        )
        self._first_token = StepHistogram(
            "specinfer_time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            TO_MINUTES_S,
            registry,
        )
        self._inter_token = StepHistogram(
            "specinfer_inter_token_latency_seconds",
            "Time per token after the first; tokens of one step share the time since the previous token.",
            TO_MINUTES_S,
            registry,
        )
        self._e2e = StepHistogram(
            "specinfer_e2e_request_latency_seconds",
            "Time from a request's arrival to its end.",
            TO_MINUTES_S,
            registry,
        )
        self._queue = StepHistogram(
            "specinfer_request_queue_time_seconds",
            "Time that a request waited for admission.",
            TO_MINUTES_S,
            registry,
        )
        for reason in set(FinishReason) - {FinishReason.UNSPECIFIED}:
            self._success(reason.name.lower())
        for code in _CODES:
            self._refused(code)

    def refused(self, code: grpc.StatusCode) -> None:
        """Count a refused call by its status code."""
        self._refused(code.name).inc()

    def admitted(self, state: RequestState) -> None:
        """Count the queueing time of a request at its first admission."""
        self._queue.observe((state.admitted_at or state.queued_at) - state.queued_at)

    def progress(self, item: Progress) -> None:
        """Count new tokens of a request, or its finish."""
        state, count = item.state, len(item.tokens)
        if count:
            self._generation_tokens.add(count)
            self._latencies(item, count)
        if item.final and state.finish is not None:
            self._success(state.finish.name.lower()).inc()
            self._e2e.observe((state.finished_at or state.queued_at) - state.queued_at)

    def _latencies(self, item: Progress, count: int) -> None:
        state = item.state
        if item.start == 0:
            self._prompt_tokens.add(len(state.request.prompt))
            self._first_token.observe((state.first_token_at or state.queued_at) - state.queued_at)
        if item.since_s is not None:
            self._inter_token.observe(item.since_s / count, times=count)
