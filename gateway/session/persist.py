"""Store and publish the tokens of finished steps in the background.

Invariant: a token is durable before a client sees it. While Redis is unavailable nothing is published; steps
queue here up to a limit, then the loop waits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.api.watch.watches import Watches
from gateway.events import Events
from gateway.session.publish import Publisher
from gateway.session.token_stream import TokenStreams
from gateway.store.requests import RequestStore, Written
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
        store: RequestStore,
        token_streams: TokenStreams,
        events: Events,
        names: Sequence[str],
        watches: Watches,
        learn: Callable[[FinishedStep], None],
        release: Callable[[list[str]], None],
        model: str = "",
        redis_patience_s: float = 300.0,
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
        self._publisher = Publisher(token_streams, events, names, watches)
        self._model, self._patience_s = model, redis_patience_s
        self.unfinished: dict[str, int] = {}
        """Adoption number of each request without a stored `Ending`."""
        self._waiting: list[_Batch] = []
        self._due, self._room = asyncio.Event(), asyncio.Event()
        """Events: "a delivery is due" and "the queue is not full"."""
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        """Start of the latest delivery, by the loop's clock in seconds."""
        self._outage = Outage(store.name)

    def open(self, state: RequestState, adoption: int) -> None:
        self.unfinished[state.request.request_id] = adoption

    def readopt(self, request_id: str, adoption: int) -> bool:
        """Return whether this session still has an adopted request's current state.

        True if the request was here before and no other gateway had it since; then store the new `adoption`.
        """
        unbroken = self.unfinished.get(request_id) == adoption - 1
        if unbroken:
            self.unfinished[request_id] = adoption
        return unbroken

    async def put(self, progress: Sequence[Progress], step: FinishedStep | None = None) -> None:
        """Queue a step's new tokens; wait while the queue is full."""
        ended = [item.request_id for item in progress if item.final]
        if ended:
            self._release(ended)  # before they are stored, as waiting requests need the cache
        if progress or step:
            while len(self._waiting) >= _MAX_WAITING:
                self._room.clear()
                await self._room.wait()
            self._add(_Batch(progress, step))

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
            progress = [item for items, _ in waiting for item in items]
            if progress:
                await self._store_and_publish(progress)
                self._publisher.show(waiting)

    def _learn_from(self, step: FinishedStep) -> None:
        try:
            self._learn(step)
        except Exception:  # learning affects speed only
            log.exception("planner and calibration failed to learn from a step; the step is ignored")
            self._events.step_failed()

    async def _store_and_publish(self, progress: list[Progress]) -> None:
        try:
            written = await self._write(progress)
        except UnavailableError as error:
            self._end_unstored(progress, error)
            return
        except Exception as error:  # noqa: BLE001  # an internal fault ends only the request that causes it
            await self._write_one_by_one(progress, error)
            return
        for item in progress:
            if written[item.request_id] in (Written.OK, Written.CANCEL):
                self._publisher.publish(item)
        self._apply_replies(written)
        self._forget([item.request_id for item in progress if item.final])

    async def _write_one_by_one(self, progress: list[Progress], error: Exception) -> None:
        """Write each request separately; end a request that cannot be written."""
        if len(progress) > 1:
            log.error("writing %d requests failed; writing them one by one", len(progress), exc_info=error)
            self._events.step_failed()
            for item in progress:
                await self._store_and_publish([item])
            return
        state, request_id = progress[0].state, progress[0].request_id
        if request_id not in self.unfinished:
            return
        reason = self._events.report_fault(request_id, error)
        self._scheduler.fail([state], reason, time.monotonic(), retryable=False)
        self._publisher.tell(Progress(state, [], [], state.new_tokens, True))
        self._publisher.break_off(request_id, reason)
        self._forget([request_id])
        self._release([request_id])
        try:
            await self._store.discard(request_id)
        except UnavailableError as away:
            log.warning(
                "request %s cannot be removed from %s: %s",
                request_id,
                self._store.name,
                away,
                extra=about(request_id),
            )

    async def _write(self, progress: Sequence[Progress]) -> dict[str, Written]:
        """Write progress to Redis, repeatedly until Redis answers.

        Raises:
            UnavailableError: if Redis is unavailable for longer than `redis_patience_s`.
        """
        attempt = 0
        while True:
            try:
                written = await self._write_once(progress)
            except UnavailableError as error:
                if self._outage.failed(error, time.monotonic()) > self._patience_s:
                    raise
                await asyncio.sleep(backoff(_FIRST_PAUSE_S, attempt, _LONGEST_PAUSE_S))
                attempt += 1
            else:
                self._outage.over(time.monotonic())
                return written

    async def _write_once(self, progress: Sequence[Progress]) -> dict[str, Written]:
        """Write progress; restore requests that Redis lost, and write again."""
        written = await self._store.append(progress, self._names, self.unfinished, self._model)
        lost = [item for item in progress if written[item.request_id] is Written.LOST]
        if not lost:
            return written
        states = {item.request_id: item.state for item in lost}
        log.warning("Redis has lost %d requests; writing them again", len(states))
        for state in states.values():
            await self.write_again(state)
        return written | await self._store.append(lost, self._names, self.unfinished, self._model)

    async def write_again(self, state: RequestState) -> None:
        """Write a request again with all tokens, after Redis lost data.

        Raises:
            UnavailableError: if Redis does not answer.
        """
        request_id = state.request.request_id
        token_stream = self._token_streams.get(request_id)
        if token_stream is not None and request_id in self.unfinished:
            await self._store.restore(
                state, token_stream, self._model, self.unfinished[request_id], time.monotonic()
            )

    def _apply_replies(self, written: dict[str, Written]) -> None:
        """Cancel requests that clients cancelled; release requests of other gateways."""
        for request_id, what in written.items():
            if what is Written.CANCEL and request_id in self._scheduler.states:
                self._scheduler.cancel(request_id)
        fenced = [name for name, what in written.items() if what in (Written.FENCED, Written.LOST)]
        if fenced:
            log.warning("%d requests now belong to other gateways, and are released here", len(fenced))
            self._events.requests_fenced(len(fenced))
            self.release_requests(fenced)

    def release_requests(self, request_ids: Sequence[str]) -> None:
        """Stop running requests; their streams continue from the next owner's tokens."""
        self._events.requests_released(request_ids, "another gateway continues it")
        for request_id in request_ids:
            if request_id in self._scheduler.states:
                self._scheduler.drop(request_id)
        self._token_streams.moved(request_ids)
        self._forget(request_ids)
        if request_ids:
            self._release(list(request_ids))

    def _forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.unfinished.pop(request_id, None)

    def _end_unstored(self, progress: Sequence[Progress], error: UnavailableError) -> None:
        """End requests after a long outage of Redis, without publishing unstored tokens."""
        request_ids = list({item.request_id for item in progress})
        log.error("%s; ending %d requests", error, len(request_ids))
        for request_id in request_ids:
            token_stream = self._token_streams.get(request_id)
            if token_stream is not None and token_stream.ending is None:
                token_stream.fail(error)
        self.release_requests(request_ids)
