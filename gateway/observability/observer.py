"""Record events as metrics, totals, logs and traces, without texts of requests.

The observer implements `gateway.events.Events`; serving does not depend on it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from gateway.events import Count, Peer
from gateway.observability.acceptance_watch import AcceptanceWatch
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.traces import RequestTraces, StepTrace
from gateway.session.totals import GatewayTotals, Named
from specinfer.errors import FaultError
from specinfer.planning.feedback import FinishedStep
from specinfer.remote.pool import SpeculatorPool
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import Progress, StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.service.stream import WireMeter
from specinfer.system.log_lines import about, counts_of

log = logging.getLogger(__name__)
access = logging.getLogger("gateway.access")
"""Logger of a line per request, which `specinfer serve` leaves to the HTTP service."""


class Observer:
    """Implementation of `Events` for one gateway."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        traces: RequestTraces | None = None,
        record: Callable[[FinishedStep, Sequence[str]], None] | None = None,
    ) -> None:
        """Create a listener.

        Args:
            metrics: metrics to update.
            traces: traces of requests; None without tracing.
            record: called with every step and `names`; `names[i]` is the name of speculator i.
        """
        self._record = record
        self.metrics, self._totals, self._traces = metrics, GatewayTotals(), traces
        self._acceptance = AcceptanceWatch(metrics.steps.speculation)
        self._steps: list[tuple[FinishedStep, SpeculatorPool]] = []
        self._progress: list[Progress] = []
        """Progress to be counted by `count`; counting in batches is cheaper."""

    @property
    def totals(self) -> GatewayTotals:
        self.count()
        return self._totals

    def request_arrived(self, request: GenerationRequest, traceparent: str = "") -> None:
        request_id = request.request_id
        if self._traces is not None:
            self._traces.arrived(request, time.monotonic(), traceparent)
        log.debug(
            "request %s arrives: %d prompt tokens, at most %d new ones",
            *(request_id, len(request.prompt), request.max_new_tokens),
            extra=self._about(request_id),
        )

    def request_waiting(self, request: GenerationRequest) -> None:
        request_id = request.request_id
        log.info("request %s waits for a gateway with a free verifier", request_id, extra=about(request_id))

    def request_adopted(self, request: GenerationRequest, tokens: int) -> None:
        """Count an adopted request; `tokens` are its generated tokens."""
        request_id = request.request_id
        self.add(Count.ADOPTED_REQUESTS)
        log.info("request %s continues here from token %d", request_id, tokens, extra=about(request_id))

    def requests_released(self, request_ids: Iterable[str], reason: str) -> None:
        for request_id in request_ids:
            log.info("request %s leaves this gateway: %s", request_id, reason, extra=self._about(request_id))
            if self._traces is not None:
                self._traces.left([request_id], time.monotonic(), reason)

    def report_fault(self, request_id: str, error: Exception) -> str:
        log.error(
            "request %s ends by an internal fault", request_id, exc_info=error, extra=self._about(request_id)
        )
        self.add(Count.FAILED_STEPS)
        return FaultError("internal error", error).for_logs

    def requests_admitted(self, states: Iterable[RequestState]) -> None:
        """Count the waits of requests that run for the first time."""
        for state in states:
            self.metrics.requests.admitted(state)

    def progress_stored(self, item: Progress) -> None:
        """Record stored new tokens of a request, or its stored `Ending`."""
        self._progress.append(item)
        if item.final and item.state.finish is not None:
            self.count()
            self._ended(item.state, item.state.finish)

    def step_finished(self, step: FinishedStep, pool: SpeculatorPool) -> None:
        self._steps.append((step, pool))
        if self._record is not None:
            self._record(step, pool.names)

    def count(self) -> None:
        """Count recorded events. Called twice a second and when requests end."""
        steps, self._steps = self._steps, []
        progress, self._progress = self._progress, []
        pools = {id(pool): pool for _, pool in steps}
        names = {number: named(pool) for number, pool in pools.items()}
        for item in progress:
            self._guarded(self._count_progress, item)
        for step, pool in steps:
            self._guarded(self._count_step, step, names[id(pool)])
        for pool in pools.values():
            self._guarded(self._count_services, pool)

    def _guarded(self, count: Callable[..., None], *arguments: object) -> None:
        """Call `count`; log an exception instead of raising it."""
        try:
            count(*arguments)
        except Exception:  # metrics must not stop serving
            log.exception("an event could not be counted; the metrics miss it")
            self.add(Count.FAILED_STEPS)

    def _count_progress(self, item: Progress) -> None:
        self._totals.tokens += len(item.tokens)
        self.metrics.requests.progress(item)

    def _count_step(self, step: FinishedStep, names: Sequence[Named]) -> None:
        self.metrics.steps.count(step, names)
        self._totals.add(step, names)
        self._acceptance.count(step.counts, names)

    def _count_services(self, pool: SpeculatorPool) -> None:
        speculation = self.metrics.steps.speculation
        for service in pool.records:
            if statistics := service.statistics:
                counts = statistics.take()
                left_out = {pool.names[number]: count for number, count in counts.quarantines.items()}
                speculation.service(service.address, counts.outcomes, counts.resyncs, left_out)

    @contextmanager
    def trace_step(self, entries: Sequence[StepEntry]) -> Iterator[StepTrace | None]:
        """Open a step's trace spans; yield None without a traced request."""
        trace = self._traces.step(entries, time.perf_counter()) if self._traces else None
        try:
            yield trace
        except Exception as error:  # noted in the trace, then raised again
            if trace is not None:
                trace.fail(time.perf_counter(), error)
            raise

    def add(self, count: Count, times: int = 1) -> None:
        self.metrics.counts[count].add(times)

    def gap_refused(self, request_id: str, known: int, start: int) -> None:
        self.add(Count.STREAM_GAPS)
        log.error(
            "request %s: tokens from %d came after only %d; its stream reads them from the store",
            *(request_id, start, known),
            extra=self._about(request_id),
        )

    def meter(self, peer: Peer) -> WireMeter:
        return self.metrics.system.meter(peer)

    def _ended(self, state: RequestState, finish: FinishReason) -> None:
        request_id = state.request.request_id
        self._totals.finished += 1
        end, prompt = state.finished_at or state.queued_at, len(state.request.prompt)
        first_s = (state.first_token_at or end) - state.queued_at
        access.info(
            "request %s ends: %s, caller %s, %s, %.3f s",
            *(request_id, finish.name.lower(), state.request.caller or "-"),
            counts_of(prompt, state.new_tokens, first_s, state.stats.steps),
            end - state.queued_at,
            extra=self._about(request_id),
        )
        if self._traces is not None:
            self._traces.ended(state)

    def _about(self, request_id: str) -> dict[str, str]:
        return about(request_id, self._traces.trace_id(request_id) if self._traces is not None else "")


def named(pool: SpeculatorPool) -> list[Named]:
    """Return a pool's metric labels; entry i is for speculator i."""
    return list(map(Named, pool.places, pool.names))
