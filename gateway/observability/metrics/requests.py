"""Metrics of requests: counts, latencies and refusals."""

import grpc
from prometheus_client import CollectorRegistry

from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import RequestState
from specinfer.service.metrics import TO_MINUTES_S, Declaring

_CODES = (
    *("INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"),
    *("NOT_FOUND", "ALREADY_EXISTS", "INTERNAL"),
)
"""Status codes of refusals, exported with 0 from the start."""


class RequestCounters:
    """Counts requests and their tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Declaring(registry)
        self._success = new.counter(
            "request_success",
            "Ended requests by reason: length, stop_token, stop_string, cancelled, deadline or error.",
            "finished_reason",
        )
        self._refused = new.counter(
            "requests_refused",
            "Generate and Attach calls refused, by gRPC status; without those over --max-calls.",
            "code",
        )
        self._prompt_tokens = new.counter("prompt_tokens", "Prompt tokens of requests with a first token.")
        self._generation_tokens = new.counter(
            "generation_tokens", "Generated tokens, stored and shown to clients."
        )
        self._first_token = new.histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token.", TO_MINUTES_S
        )
        self._inter_token = new.histogram(
            "inter_token_latency_seconds",
            "Time per token after the first; tokens of one step share the time since the previous token.",
            TO_MINUTES_S,
        )
        self._e2e = new.histogram(
            "e2e_request_latency_seconds", "Time from a request's arrival to its end.", TO_MINUTES_S
        )
        self._queue = new.histogram(
            "request_queue_time_seconds", "Time that a request waited for admission.", TO_MINUTES_S
        )
        for reason in set(FinishReason) - {FinishReason.UNSPECIFIED}:
            self._success.add(0, reason.name.lower())
        for code in _CODES:
            self._refused.add(0, code)

    def refused(self, code: grpc.StatusCode) -> None:
        """Count a refused call by its status code."""
        self._refused.add(1, code.name)

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
            self._success.add(1, state.finish.name.lower())
            self._e2e.observe((state.finished_at or state.queued_at) - state.queued_at)

    def _latencies(self, item: Progress, count: int) -> None:
        state = item.state
        if item.start == 0:
            self._prompt_tokens.add(len(state.request.prompt))
            self._first_token.observe((state.first_token_at or state.queued_at) - state.queued_at)
        if item.since_s is not None:
            self._inter_token.observe(item.since_s / count, times=count)
