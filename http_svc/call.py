"""Read the gateway streams of an HTTP call concurrently, one per choice."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from http_svc.calls.answer import AnswerReader
from http_svc.calls.reader import Delta
from http_svc.errors import CancelledElsewhereError, EndingError
from specinfer.client import Answer, AsyncClient, AsyncStream, FinishReason, Piece

Result = TypeVar("Result")
_UNREAD = 16
"""Maximum unread events of a call; then the gateway waits."""


class ClientGoneError(Exception):
    """The client closed its connection."""


@dataclass(frozen=True, slots=True)
class Event:
    """A new piece of choice `index`, or the choice's end."""

    index: int
    piece: Piece | None = None
    """New text and tokens; None: the choice has ended."""
    deltas: Sequence[Delta] | None = None
    """Output of the choice's `AnswerReader`; None without a reader."""
    error: Exception | None = None
    """Error that ended the choice; None at a normal end."""


class Call:
    """Reads one gateway stream per choice, each in a task, until `close`."""

    def __init__(
        self,
        client: AsyncClient,
        streams: Sequence[AsyncStream],
        *,
        lingers: bool,
        whole: bool = True,
        readers: Sequence[AnswerReader | None] = (),
    ) -> None:
        """Create a call.

        Args:
            client: client that cancels requests.
            streams: one stream per choice.
            lingers: True: `close` leaves unfinished requests running, so that a client may reconnect.
            whole: False: log-probabilities are left out of `answers`, as events have them.
            readers: one reader per choice, which may end the choice early; None: the text is not parsed.
        """
        self._client, self._streams, self._lingers, self._whole = client, streams, lingers, whole
        self.readers = list(readers) or [None] * len(streams)
        self._events: asyncio.Queue[Event] = asyncio.Queue(_UNREAD)
        self._running = set(range(len(streams)))
        self._waiting = set(self._running)
        self._refusal: Exception | None = None
        self._accepted = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read(index)) for index in self._running]

    @property
    def answers(self) -> list[Answer]:
        """Answers of the choices, as received so far."""
        return [stream.answer for stream in self._streams]

    async def accepted(self) -> None:
        """Wait until gateways have accepted all choices."""
        await self._accepted.wait()
        if self._refusal is not None:
            raise self._refusal

    async def next(self) -> Event | None:
        """Return any choice's next event; None after the end of all choices."""
        if not self._running:
            return None
        event = await self._events.get()
        if event.piece is None:
            self._running.discard(event.index)
        if event.error is not None:
            raise event.error
        return event

    async def finish(self) -> list[Answer]:
        """Wait for the end of all choices and return their answers."""
        while await self.next() is not None:
            pass
        return self.answers

    async def close(self) -> None:
        """Close all streams; cancel unfinished requests unless `lingers` was set."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()
        if not self._lingers:
            left = [self._streams[index].request_id for index in self._running]
            await asyncio.gather(*map(self._client.abandon, left))

    async def _read(self, index: int) -> None:
        stream = self._streams[index]
        try:
            await self._accept(index)
            reader = self.readers[index]
            if reader is not None and stream.answer.begins_in_reasoning:
                reader.begin_in_reasoning()
            async for piece in stream:
                deltas = None if reader is None else reader.push(piece.text, piece.token_ids)
                if not self._whole:
                    stream.answer.logprobs.clear()
                    stream.answer.token_logprobs.clear()
                await self._events.put(Event(index, piece, deltas))
                if reader is not None and reader.ended:
                    await self._end_early(stream)
                    break
            if stream.answer.finish_reason is FinishReason.CANCELLED:
                raise CancelledElsewhereError(f"request {stream.request_id} was cancelled by another call")
            await self._events.put(Event(index, deltas=None if reader is None else reader.end()))
        except Exception as error:  # noqa: BLE001  # the consumer of events raises it
            await self._events.put(Event(index, error=error))

    async def _end_early(self, stream: AsyncStream) -> None:
        """End a choice whose reader ignores further text; cancel its request."""
        answer = stream.answer
        answer.summary = replace(
            answer.summary, finish_reason=FinishReason.CONSTRAINT, new_tokens=len(answer.token_ids)
        )
        await self._client.abandon(stream.request_id)

    async def _accept(self, index: int) -> None:
        """Wait until a choice is accepted or refused."""
        try:
            await self._streams[index].accepted()
        except Exception as error:
            self._refusal = error
            self._accepted.set()
            raise
        self._waiting.discard(index)
        if not self._waiting:
            self._accepted.set()


async def while_wanted(
    work: Awaitable[Result], receive: Callable[[], Awaitable[Any]], ending: asyncio.Event
) -> Result:
    """Return the result of `work`; cancel it if client or service ends.

    Args:
        work: the work, which starts now.
        receive: ASGI's `receive`, after the body was read.
        ending: set when the service ends.
    """
    working = asyncio.ensure_future(work)
    gone, ended = asyncio.create_task(_hung_up(receive)), asyncio.create_task(ending.wait())
    try:
        await asyncio.wait({working, gone, ended}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError if gone.done() else EndingError("this service is shutting down")
    finally:
        for task in (working, gone, ended):
            task.cancel()
        await asyncio.gather(working, gone, ended, return_exceptions=True)


async def _hung_up(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
