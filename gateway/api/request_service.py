"""Where requests come in: recorded first, then run by a lane of this gateway or left to others, and read by
clients.

Knows no protobuf. Whoever reads a request reads its feed, whoever runs it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from gateway.api.callers import Caller
from gateway.cluster.lease_manager import Keeper
from gateway.cluster.sessions import Lanes
from gateway.observability.observer import Journal
from gateway.session.session import Lane
from gateway.session.token_stream import Feed, Feeds
from gateway.settings import GatewaySettings
from gateway.store.records import Record
from gateway.store.requests import RequestStore
from specinfer.errors import (
    InvalidInputError,
    NotFoundError,
    SpecInferError,
    UnavailableError,
)
from specinfer.log_context import about
from specinfer.scheduling.request import GenerationRequest

log = logging.getLogger(__name__)


class Desk:
    """Submits, attaches, cancels."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: RequestStore,
        feeds: Feeds,
        lanes: Lanes,
        keeper: Keeper,
        journal: Journal,
    ) -> None:
        self._settings, self._store, self._feeds = settings, store, feeds
        self._lanes, self._keeper, self._journal = lanes, keeper, journal
        self._tasks: set[asyncio.Task[object]] = set()
        self._lingering: dict[str, asyncio.Task[object]] = {}
        """Requests here that nobody reads, by id, each with what ends it after a while."""

    async def submit(
        self, request: GenerationRequest, digest: str, caller: Caller, traceparent: str = ""
    ) -> Feed:
        """Records a request and lets it run; the feed of the one that is there if it is repeated.
        `traceparent` is the caller's trace context.

        A client that hangs up meanwhile does not interrupt it: the request is then one that nobody reads.

        Raises:
            AlreadyExistsError: if its id was used for another request.
            ExhaustedError: if the queue is full or the caller's quota used up.
            InvalidInputError: if it could never fit into the verifier's cache.
            UnavailableError: if this gateway is drained, or Redis does not answer.
        """
        if self._keeper.draining:
            raise UnavailableError("this gateway is being drained; ask another one")
        if not self._keeper.redis_ready:
            raise UnavailableError("Redis does not answer")
        task = asyncio.create_task(self._submit(request, digest, caller, traceparent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._hung_up)
            raise

    async def attach(self, request_id: str, from_token: int, caller: Caller) -> Feed:
        """The feed of a request, whoever runs it.

        Raises:
            NotFoundError: if nobody knows it, or it is another caller's.
            InvalidInputError: if it cannot have so many tokens.
            UnavailableError: if Redis does not answer.
        """
        feed = self._feeds.get(request_id)
        if feed is None or feed.failure is not None:
            record = await self._store.load(request_id, caller)
            if record is None:
                raise NotFoundError(f"request_id = {request_id!r}: no such request")
            feed = _feed_of(record)
        if feed.request.caller != caller.name:
            raise NotFoundError(f"request_id = {request_id!r}: no such request")
        if from_token > feed.request.max_new_tokens:
            most = feed.request.max_new_tokens
            raise InvalidInputError("from_token", from_token, f"the request has {most} tokens at most")
        if feed.ending is None:
            await self._store.listen(request_id)
        return feed

    async def cancel(self, request_id: str, caller: Caller) -> None:
        """Ends a request soon, whoever runs it.

        Raises:
            NotFoundError: if it is not running, or another caller's.
            UnavailableError: if Redis does not answer.
        """
        lane, feed = self._lanes.of_request(request_id), self._feeds.get(request_id)
        if lane is not None and feed is not None and feed.request.caller == caller.name:
            lane.loop.cancel(request_id)
        else:
            await self._store.cancel(request_id, caller)

    @contextlib.contextmanager
    def reading(self, feed: Feed) -> Iterator[Feed]:
        """A client reads a feed, or the one that took its place meanwhile; when the last one leaves, the
        request goes on for the linger time only."""
        request_id = feed.request.request_id
        feed = self._feeds.add(feed)
        if request_id in self._lingering:
            self._lingering.pop(request_id).cancel()
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if feed.ending is None and feed.failure is None:
                self._left(request_id)
            self._feeds.forget_if_idle(feed)

    async def close(self) -> None:
        """Ends background work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _submit(
        self, request: GenerationRequest, digest: str, caller: Caller, traceparent: str
    ) -> Feed:
        known = self._feeds.get(request.request_id)
        if known is not None and known.local and known.digest == digest:
            return await self.attach(request.request_id, 0, caller)  # Redis may just have lost it
        lane = self._lanes.best_for(request)
        with lane.expecting() if lane is not None else contextlib.nullcontext():
            new = await self._store.create(request, digest, caller, owned=lane is not None)
        if not new:
            return await self.attach(request.request_id, 0, caller)
        if lane is None:
            self._journal.waits(request)
            return Feed(request, digest, False)
        return await self._run(request, digest, lane, traceparent)

    async def _run(self, request: GenerationRequest, digest: str, lane: Lane, traceparent: str) -> Feed:
        """Hands a request that was just recorded to its lane."""
        feed = self._feeds.open_local(request, digest)
        try:
            lane.submit(Record(request, digest))
        except SpecInferError:
            self._feeds.moved([request.request_id])
            await self._store.discard(request.request_id)
            raise
        self._journal.arrived(request, traceparent)
        return feed

    def _hung_up(self, task: "asyncio.Task[Feed]") -> None:
        """A client did not wait for its request to be recorded."""
        if not task.cancelled() and task.exception() is None:
            self._left(task.result().request.request_id)

    def _left(self, request_id: str) -> None:
        """A client has left; if it was the last one here, the request lingers."""
        feed = self._feeds.get(request_id)
        if (feed is not None and feed.readers) or request_id in self._lingering:
            return
        task: asyncio.Task[object] = asyncio.create_task(self._linger(request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._lingering[request_id] = task

    async def _linger(self, request_id: str) -> None:
        """After a while without a client here a request is cancelled, unless somebody reads it elsewhere."""
        await asyncio.sleep(self._settings.linger_seconds)
        del self._lingering[request_id]
        try:
            wanted = await self._store.leave(request_id)
        except UnavailableError as error:
            why = "request %s goes on though nobody reads it: %s"
            log.warning(why, request_id, error, extra=about(request_id))
            return
        lane = self._lanes.of_request(request_id)
        if wanted and lane is not None:
            lane.loop.cancel(request_id)


def _feed_of(record: Record) -> Feed:
    return Feed(record.request, record.digest, False, record.tokens, record.logprobs, record.ending)
