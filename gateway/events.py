"""Events of a gateway: requests, steps and peers.

The core reports them and knows no listener; `gateway.app` connects `gateway.observability` to them.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias

from specinfer.planning.feedback import FinishedStep
from specinfer.remote.pool import SpeculatorPool
from specinfer.scheduling.entries import Progress, StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.service.stream import WireMeter

Peer: TypeAlias = Literal["verifier", "speculator", "client"]


class TraceOfStep(Protocol):
    traceparent: str
    """Trace context for the services."""

    def end(self, step: FinishedStep) -> None:
        """End the spans of a finished step."""


class Events(Protocol):
    """Listens to events. It must not change any output."""

    def request_arrived(self, request: GenerationRequest, traceparent: str = "") -> None:
        """Handle the recording of a request."""

    def request_waiting(self, request: GenerationRequest) -> None:
        """Handle a recorded request that no session of this gateway can run."""

    def request_adopted(self, request: GenerationRequest, tokens: int) -> None:
        """Handle a request that continues here, after so many generated tokens."""

    def requests_released(self, request_ids: Iterable[str], reason: str) -> None:
        """Handle unfinished requests that leave this gateway."""

    def report_fault(self, request_id: str, error: Exception) -> str:
        """Log an internal fault; return the message for the client."""

    def requests_admitted(self, states: Iterable[RequestState]) -> None:
        """Handle requests that begin to run, for the first time."""

    def progress_stored(self, item: Progress) -> None:
        """Handle stored new tokens of a request, or its stored end."""

    def step_finished(self, step: FinishedStep, pool: SpeculatorPool) -> None:
        """Count a finished step."""

    def trace_step(self, entries: Sequence[StepEntry]) -> AbstractContextManager[TraceOfStep | None]:
        """Open the spans of a step; None if it is not traced."""

    def step_failed(self) -> None:
        """Count a step whose drafts or batch failed by a fault."""

    def requests_preempted(self, requests: int) -> None:
        """Count requests that gave their cache to others."""

    def verifier_failed(self) -> None:
        """Count a call that the verifier did not answer."""

    def requests_fenced(self, requests: int) -> None:
        """Count requests that belong to another gateway."""

    def redis_stopped(self) -> None:
        """Count an outage of Redis."""

    def redis_lost_data(self) -> None:
        """Count a Redis that came back without its data."""

    def cluster_failed(self) -> None:
        """Count a fault of ours in leases, rebalancing or following."""

    def meter(self, peer: Peer) -> WireMeter:
        """Count the bytes exchanged with a kind of peer."""
