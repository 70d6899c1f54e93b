"""Define a gateway's events about requests, steps and peers.

The core calls this interface; `gateway.app` connects it to `gateway.observability`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import Literal, Protocol, TypeAlias

from specinfer.planning.feedback import FinishedStep
from specinfer.remote.pool import SpeculatorPool
from specinfer.scheduling.entries import Progress, StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.service.stream import WireMeter

Peer: TypeAlias = Literal["verifier", "speculator", "client"]


class Count(Enum):
    """Events that are only counted: each is a metric with its documentation."""

    PREEMPTIONS = "preemptions", "Requests whose cache was freed for others and recomputed."
    FAILED_STEPS = "failed_steps", "Steps, and requests in them, that failed by a fault of the gateway."
    VERIFIER_FAILURES = "verifier_failures", "Steps that the verifier did not answer."
    REDIS_OUTAGES = "redis_outages", "Times at which Redis stopped answering."
    REDIS_LOSSES = "redis_losses", "Times at which Redis had lost its data."
    KEEPER_FAULTS = "keeper_faults", "Faults in background work; the log has the reason."
    ADOPTED_REQUESTS = "adopted_requests", "Requests taken over from another gateway."
    FENCED_REQUESTS = "fenced_requests", "Requests that another gateway took over from this one."
    STREAM_GAPS = (
        "stream_gaps",
        "Tokens refused by a stream because earlier ones were missing; the stream then reads the store.",
    )


class TraceOfStep(Protocol):
    traceparent: str
    """Trace context to send to services."""

    def end(self, step: FinishedStep) -> None:
        """End the spans of a finished step."""


class Events(Protocol):
    """Listener to events. It must never change an answer."""

    def request_arrived(self, request: GenerationRequest, traceparent: str = "") -> None:
        """Handle a request that was recorded."""

    def request_waiting(self, request: GenerationRequest) -> None:
        """Handle a recorded request that no session of this gateway can run."""

    def request_adopted(self, request: GenerationRequest, tokens: int) -> None:
        """Handle an adopted request that continues after `tokens` generated tokens."""

    def requests_released(self, request_ids: Iterable[str], reason: str) -> None:
        """Handle unfinished requests that other gateways will continue."""

    def report_fault(self, request_id: str, error: Exception) -> str:
        """Log an internal fault; return the message for the client."""

    def requests_admitted(self, states: Iterable[RequestState]) -> None:
        """Handle requests that run for the first time."""

    def progress_stored(self, item: Progress) -> None:
        """Handle stored new tokens of a request, or its stored `Ending`."""

    def step_finished(self, step: FinishedStep, pool: SpeculatorPool) -> None:
        """Count a finished step."""

    def trace_step(self, entries: Sequence[StepEntry]) -> AbstractContextManager[TraceOfStep | None]:
        """Open a step's trace spans; yield None without a traced request."""

    def add(self, count: Count, times: int = 1) -> None:
        """Increase a count of events."""

    def gap_refused(self, request_id: str, known: int, start: int) -> None:
        """Count tokens from `start` that a stream of `known` tokens refused."""

    def meter(self, peer: Peer) -> WireMeter:
        """Return the byte counter for a kind of peer."""
