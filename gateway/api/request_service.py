"""Submit, attach to and cancel requests, independent of protobuf.

A client reads a request's token stream at any gateway, whichever gateway runs the request.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from gateway.api.callers import Caller
from gateway.cluster.lease_manager import LeaseManager
from gateway.cluster.sessions import VerifierSessions
from gateway.events import Events
from gateway.session.session import VerifierSession
from gateway.session.token_stream import TokenStream, TokenStreams
from gateway.settings import GatewaySettings
from gateway.store.protocol import Store
from gateway.store.records import Record
from specinfer.errors import (
    InvalidInputError,
    NotFoundError,
    SpecInferError,
    UnavailableError,
)
from specinfer.scheduling.request import GenerationRequest
from specinfer.system.log_lines import about

log = logging.getLogger(__name__)


class RequestService:
    """Records requests, submits them to sessions, returns token streams."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        token_streams: TokenStreams,
        sessions: VerifierSessions,
        lease_manager: LeaseManager,
        events: Events,
    ) -> None:
        self._settings, self._store, self._token_streams = settings, store, token_streams
        self._sessions, self._lease_manager, self._events = sessions, lease_manager, events
        self._tasks: set[asyncio.Task[object]] = set()
        self._lingering: dict[str, asyncio.Task[object]] = {}
        """Timers by request id: each cancels a request without clients."""

    async def submit(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, traceparent: str = ""
    ) -> TokenStream:
        """Record a request, submit it to a session, return its stream.

        A repeated request returns the stream of the existing request. `traceparent` is the caller's trace
        context.

        Cancelling this call does not interrupt the recording; the request then has no client and ends after
        the linger time.
        """
        if self._lease_manager.draining:
            raise UnavailableError("this gateway is draining; call another gateway")
        if not self._lease_manager.redis_ready:
            raise UnavailableError(f"{self._store.name} does not answer: retry later")
        task = asyncio.create_task(self._submit(request, idempotency_key, caller, traceparent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._hung_up)
            raise

    async def attach(self, request_id: str, from_token: int, caller: Caller) -> TokenStream:
        """Return the token stream of a request, whichever gateway runs it."""
        token_stream = self._token_streams.get(request_id)
        if token_stream is None or token_stream.failure is not None:
            record = await self._store.load(request_id, caller)
            if record is None:
                raise NotFoundError(f"request_id = {request_id!r}: no such request")
            token_stream = _stream_of(record)
        if token_stream.request.caller != caller.name:
            raise NotFoundError(f"request_id = {request_id!r}: no such request")
        if from_token > token_stream.request.max_new_tokens:
            max_tokens = token_stream.request.max_new_tokens
            raise InvalidInputError("from_token", from_token, f"at most {max_tokens}, the max_new_tokens")
        if token_stream.ending is None:
            await self._store.listen(request_id)
        return token_stream

    async def cancel(self, request_id: str, caller: Caller) -> None:
        """End a request soon, whichever gateway runs it."""
        session, token_stream = self._sessions.of_request(request_id), self._token_streams.get(request_id)
        if session is not None and token_stream is not None and token_stream.request.caller == caller.name:
            session.loop.cancel(request_id)
        else:
            await self._store.cancel(request_id, caller)

    @contextlib.contextmanager
    def reading(self, token_stream: TokenStream) -> Iterator[TokenStream]:
        """Count a reader within the context; yield the request's shared stream.

        After the last reader, the request runs for at most `linger_seconds`.
        """
        request_id = token_stream.request.request_id
        token_stream = self._token_streams.add(token_stream)
        if request_id in self._lingering:
            self._lingering.pop(request_id).cancel()
        token_stream.readers += 1
        try:
            yield token_stream
        finally:
            token_stream.readers -= 1
            if token_stream.ending is None and token_stream.failure is None:
                self._left(request_id)
            self._token_streams.forget_if_idle(token_stream)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _submit(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, traceparent: str
    ) -> TokenStream:
        known = self._token_streams.get(request.request_id)
        if known is not None and known.local and known.idempotency_key == idempotency_key:
            return await self.attach(request.request_id, 0, caller)  # even if Redis has just lost it
        session = self._sessions.best_for(request)
        with session.expecting() if session is not None else contextlib.nullcontext():
            new = await self._store.create(request, idempotency_key, caller, owned=session is not None)
        if not new or self._sessions.owns(request.request_id):  # or adopted while the answer was on its way
            return await self.attach(request.request_id, 0, caller)
        if session is None:
            self._events.request_waiting(request)
            return TokenStream(request, idempotency_key)
        return await self._run(request, idempotency_key, session, traceparent)

    async def _run(
        self, request: GenerationRequest, idempotency_key: str, session: VerifierSession, traceparent: str
    ) -> TokenStream:
        """Submit a recorded request to `session`; discard its record if refused.

        If the session has ended, any gateway may adopt the request.
        """
        try:
            session.submit(Record(request, idempotency_key))
        except UnavailableError:
            await self._store.disown({request.request_id: 1})
            self._events.request_waiting(request)
            return TokenStream(request, idempotency_key)
        except SpecInferError:
            await self._store.discard(request.request_id)
            raise
        self._events.request_arrived(request, traceparent)
        token_stream = self._token_streams.get(request.request_id)
        assert token_stream is not None, "its run has just begun"
        return token_stream

    def _hung_up(self, task: "asyncio.Task[TokenStream]") -> None:
        """Start the linger timer if the client left during the recording."""
        if not task.cancelled() and task.exception() is None:
            self._left(task.result().request.request_id)

    def _left(self, request_id: str) -> None:
        """Start the linger timer if the request has no local reader."""
        token_stream = self._token_streams.get(request_id)
        if (token_stream is not None and token_stream.readers) or request_id in self._lingering:
            return
        task: asyncio.Task[object] = asyncio.create_task(self._linger(request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._lingering[request_id] = task

    async def _linger(self, request_id: str) -> None:
        """Wait `linger_seconds`; cancel the request unless another gateway has readers."""
        await asyncio.sleep(self._settings.linger_seconds)
        del self._lingering[request_id]
        try:
            wanted = await self._store.leave(request_id)
        except UnavailableError as error:
            reason = "request %s continues although no client reads it: %s"
            log.warning(reason, request_id, error, extra=about(request_id))
            return
        session = self._sessions.of_request(request_id)
        if wanted and session is not None:
            session.loop.cancel(request_id)


def _stream_of(record: Record) -> TokenStream:
    """Return a stream with a record's tokens, which the follower continues."""
    stored = record.tokens, record.logprobs, record.ending
    return TokenStream(record.request, record.idempotency_key, None, *stored)
