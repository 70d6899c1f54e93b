"""Store and publish the tokens of finished steps in the background.

Invariant: a token is durable before a client sees it, and only an open `RequestRun` stores or publishes. While Redis is
unavailable nothing is published; steps queue here up to a limit, then the loop waits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gateway.api.watch.watches import Watches
from gateway.events import Count, Events
from gateway.session.publish import Publisher, RequestRun, Unsent
from gateway.session.token_stream import TokenStream, TokenStreams
from gateway.store.protocol import Store, Written
from specinfer.errors import UnavailableError
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.scheduler import Scheduler
from specinfer.service.outage import Outage, backoff
from specinfer.system.log_lines import about

log = logging.getLogger(__name__)
_MAX_WAITING = 64
"""Maximum queued steps; a full queue stops the session's loop."""
_APART_S = 0.016
"""Minimum seconds between two deliveries (write to Redis, message to clients)."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""Minimum and maximum seconds between writes while Redis is unavailable."""


class _Batch(NamedTuple):
    progress: Sequence[Progress]
    step: FinishedStep | None
    """Step to learn from; None if requests ended between steps."""

    @property
    def urgent(self) -> bool:
        """True if a request begins or ends: deliver at once."""
        return any(item.final or item.start == 0 for item in self.progress)


class Persistence:
    """Queue from a session's loop to the store, then to token streams."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: Store,
        token_streams: TokenStreams,
        events: Events,
        names: Sequence[str],
        watches: Watches,
        learn: Callable[[FinishedStep], None],
        release: Callable[[list[str]], None],
        model: str = "",
        redis_patience_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a queue.

        `learn` is called with every finished step, `release` with ended requests. `names[i]` is the name of
        speculator i; the pool extends this list.
        """
        self._scheduler, self._store, self._token_streams, self._events = (
            scheduler,
            store,
            token_streams,
            events,
        )
        self._names, self._learn, self._release = names, learn, release
        self._publisher = Publisher(events, names, watches)
        self._model, self._patience_s, self._clock = model, redis_patience_s, clock
        self._runs: dict[str, RequestRun] = {}
        """Open runs by request id."""
        self._waiting: list[_Batch] = []
        self._due, self._room = asyncio.Event(), asyncio.Event()
        """Events: "a delivery is due" and "the queue is not full"."""
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        """Start of the latest delivery, by the loop's clock in seconds."""
        self._outage = Outage(store.name)

    def __contains__(self, request_id: str) -> bool:
        """Return whether the session runs a request or must store its `Ending`."""
        return request_id in self._runs

    @property
    def unfinished(self) -> list[str]:
        """Requests without a stored `Ending`."""
        return list(self._runs)

    def open(self, state: RequestState, token_stream: TokenStream) -> None:
        """Begin to deliver a submitted request's tokens to `token_stream`."""
        run = RequestRun(state, token_stream)
        assert run.request_id not in self._runs, "the previous adoption is released first"
        self._runs[run.request_id] = run

    def _run_of(self, state: RequestState) -> RequestRun | None:
        """Return the open run of exactly this state, not of another adoption."""
        run = self._runs.get(state.request.request_id)
        return run if run is not None and run.state is state else None

    async def put(self, progress: Sequence[Progress], step: FinishedStep | None = None) -> None:
        """Queue a step's new tokens; wait while the queue is full.

        Tokens of runs that were closed since the step are dropped.
        """
        found = [(run, item) for item in progress if (run := self._run_of(item.state)) is not None]
        for run, item in found:
            run.add(item)
        if ended := [item.request_id for _, item in found if item.final]:
            self._release(ended)  # before they are stored, as waiting requests need the cache
        if found or step:
            self._add(_Batch([item for _, item in found], step))
            while len(self._waiting) >= _MAX_WAITING:
                self._room.clear()
                await self._room.wait()

    def _add(self, batch: _Batch) -> None:
        loop = asyncio.get_running_loop()
        if batch.step is not None:  # learn only after the next step's drafts are requested
            loop.call_soon(loop.call_soon, self._learn_from, batch.step)
        self._waiting.append(batch)
        if batch.urgent or len(self._waiting) >= _MAX_WAITING:
            self._due.set()
        elif self._timer is None:
            self._timer = loop.call_at(self._began + _APART_S, self._due.set)

    async def run(self) -> None:
        """Deliver the queue until cancelled, at most every `_APART_S`."""
        loop = asyncio.get_running_loop()
        while True:
            await self._due.wait()
            await asyncio.sleep(0)  # let the next step request its drafts first
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._began = None, loop.time()
            waiting, self._waiting = self._waiting, []
            self._room.set()
            taken = [run.take() for run in self._runs.values()]
            if deliveries := [delivery for delivery in taken if delivery is not None]:
                await self._store_and_publish(deliveries)
            self._publisher.show(waiting)

    def _learn_from(self, step: FinishedStep) -> None:
        try:
            self._learn(step)
        except Exception:  # learning affects speed only
            log.exception("planner and calibration failed to learn from a step; the step is ignored")
            self._events.add(Count.FAILED_STEPS)

    async def _store_and_publish(self, deliveries: Sequence[Unsent]) -> None:
        try:
            written = await self._write(deliveries)
        except UnavailableError as error:
            self._end_unstored(deliveries, error)
            return
        except Exception as error:  # noqa: BLE001  # an internal fault ends only the request that causes it
            await self._write_one_by_one(deliveries, error)
            return
        refused = []
        for run, items in deliveries:
            if not run.open:
                continue
            if (what := written[run]) in (Written.FENCED, Written.LOST):
                refused.append(run)
                continue
            for item in items:
                self._publisher.publish(run, item)
            if items[-1].final:
                self._close(run)
            elif what is Written.CANCEL and run.state.finish is None:
                self._scheduler.cancel(run.request_id)
        if refused:
            log.warning("%d requests now belong to other gateways, and are released here", len(refused))
            self._events.add(Count.FENCED_REQUESTS, len(refused))
            self._let_go(refused)

    async def _write_one_by_one(self, deliveries: Sequence[Unsent], error: Exception) -> None:
        """Write each request separately; end a request that cannot be written."""
        if len(deliveries) > 1:
            log.error("writing %d requests failed; writing them one by one", len(deliveries), exc_info=error)
            self._events.add(Count.FAILED_STEPS)
            for delivery in deliveries:
                await self._store_and_publish([delivery])
            return
        run = deliveries[0].run
        if not run.open:
            return
        reason = self._events.report_fault(run.request_id, error)
        self._scheduler.fail([run.state], reason, self._clock(), retryable=False)
        self._publisher.report_stored(Progress(run.state, [], [], run.state.new_tokens, True))
        self._publisher.break_off(run, reason)
        self._close(run)
        self._release([run.request_id])
        try:
            await self._store.discard(run.request_id, run.state.adoption)
        except UnavailableError as away:
            log.warning(
                "request %s cannot be removed from %s: %s",
                run.request_id,
                self._store.name,
                away,
                extra=about(run.request_id),
            )

    async def _write(self, deliveries: Sequence[Unsent]) -> dict[RequestRun, Written]:
        """Write to Redis, repeatedly until Redis answers; return each open run's outcome."""
        attempt = 0
        while True:
            try:
                written = await self._write_once(deliveries)
            except UnavailableError as error:
                if self._outage.failed(error, self._clock()) > self._patience_s:
                    raise
                await asyncio.sleep(backoff(_FIRST_PAUSE_S, attempt, _LONGEST_PAUSE_S))
                attempt += 1
            else:
                self._outage.over(self._clock())
                return written

    async def _write_once(self, deliveries: Sequence[Unsent]) -> dict[RequestRun, Written]:
        """Write the open runs' tokens; restore requests that Redis lost, and write again."""
        written = await self._append(deliveries)
        lost = [one for one in deliveries if written.get(one.run) is Written.LOST and one.run.open]
        if lost:
            log.warning("Redis has lost %d requests; writing them again", len(lost))
            for run, _ in lost:
                await self._restore(run)
            written |= await self._append(lost)
        return written

    async def _append(self, deliveries: Sequence[Unsent]) -> dict[RequestRun, Written]:
        """Store the tokens of open runs; return each one's outcome."""
        going = [one for one in deliveries if one.run.open]
        words = await self._store.append([one.progress for one in going], self._names, self._model)
        return {run: what for (run, _), what in zip(going, words, strict=True)}

    async def write_all_again(self) -> None:
        """Write all open runs again, after Redis lost data."""
        for run in list(self._runs.values()):
            await self._restore(run)

    async def _restore(self, run: RequestRun) -> None:
        """Write a run's request again with all durable tokens."""
        if run.open:
            await self._store.restore(run.state, run.token_stream, self._model, self._clock())

    def release_requests(self, request_ids: Iterable[str]) -> dict[str, int]:
        """Stop running requests; their streams continue from the next owner's tokens.

        Returns:
            the adoption of each released request, by request id.
        """
        runs = [self._runs[request_id] for request_id in request_ids if request_id in self._runs]
        self._let_go(runs)
        return {run.request_id: run.state.adoption for run in runs}

    def _let_go(self, runs: Sequence[RequestRun]) -> None:
        request_ids = [run.request_id for run in runs]
        self._events.requests_released(request_ids, "another gateway continues it")
        for run in runs:
            if self._scheduler.states.get(run.request_id) is run.state:
                self._scheduler.drop(run.request_id)
            self._close(run)
        if request_ids:
            self._release(request_ids)

    def _close(self, run: RequestRun) -> None:
        if self._runs.get(run.request_id) is run:
            del self._runs[run.request_id]
        run.close()
        self._token_streams.forget_if_idle(run.token_stream)

    def _end_unstored(self, deliveries: Sequence[Unsent], error: UnavailableError) -> None:
        """End requests after a long outage of Redis, without publishing unstored tokens."""
        runs = [run for run, _ in deliveries if run.open]
        log.error("%s; ending %d requests", error, len(runs))
        for run in runs:
            if run.token_stream.ending is None:
                run.token_stream.fail(error)
        self._let_go(runs)
