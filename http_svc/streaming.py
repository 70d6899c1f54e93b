"""Stream server-sent events.

Specification: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from http_svc.call import Call, ClientGoneError, while_wanted
from http_svc.calls.answer import AnswerReader
from http_svc.calls.reader import Delta
from http_svc.errors import ApiError, EndingError, api_error, internal_error
from http_svc.responses import ResponseShape, TextOffsets, usage_so_far
from specinfer.client import Answer
from specinfer.errors import InvalidInputError, SpecInferError

log = logging.getLogger(__name__)

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Shared encoder: `json.dumps` with options creates one per call."""
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Escapes for line ends that JSON does not escape.

Clients that read text by lines may split at them.
"""
DONE = b"data: [DONE]\n\n"
_COMMENT = b": waiting\n\n"
_QUIET_S = 5.0
"""Seconds without events before a comment is sent, against proxies' timeouts."""
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers against buffering by proxies."""


def event_id(request_id: str, position: int) -> str:
    """Return an event's id: request id and tokens sent so far."""
    return f"{request_id}:{position}"


def read_event_id(text: str) -> tuple[str, int]:
    """Return request id and number of tokens from an event's id."""
    request_id, _, position = text.rpartition(":")
    sound = request_id.isascii() and request_id.isprintable() and position.isdecimal()
    if not request_id or not sound or int(position) >= 2**32:
        raise InvalidInputError(
            "Last-Event-ID", text, "must be the id of a received event, REQUEST_ID:TOKENS"
        )
    return request_id, int(position)


def encode(data: Mapping[str, Any], identity: str = "", event: str = "") -> bytes:
    """Encode one event, with its optional id and name."""
    head = f"event: {event}\n" if event else ""
    head += f"id: {identity}\n" if identity else ""
    return f"{head}data: {_ENCODER.encode(data).translate(_LINE_ENDS)}\n\n".encode()


async def event_lines(
    call: Call,
    shape: ResponseShape,
    prompts: int,
    start: int | None,
    explain: Callable[[SpecInferError], ApiError],
) -> AsyncIterator[bytes]:
    """Yield the events of an answer.

    Args:
        call: the call whose streams are read.
        shape: format of the answer.
        prompts: number of prompts.
        start: number of tokens that the client has received; None: events get no ids.
        explain: converts an error to the API's error.
    """
    sent = [start or 0] * len(call.answers)

    def encoded(data: Mapping[str, Any], position: int, choice: int | None = None) -> bytes:
        if shape.usage_always and choice is not None:
            data = {**data, "usage": usage_so_far(call.answers[choice], sent[choice])}
        return encode(data, "" if start is None else event_id(shape.request_id, position))

    try:
        for index in range(len(call.answers)):
            opening = shape.opening(index)
            if opening is not None and not start:
                yield encoded(opening, 0, index)
        event, position, offsets = await call.next(), start or 0, [TextOffsets() for _ in call.answers]
        while event is not None:
            if event.piece is None:
                finish = call.answers[event.index].finish_reason
                if (last := shape.last(event.index, event.deltas or ())) is not None:
                    yield encoded(last, position, event.index)
                yield encoded(
                    shape.end(event.index, finish, call.readers[event.index]), position, event.index
                )
            else:
                position = sent[event.index] = event.piece.position + len(event.piece.token_ids)
                part = shape.part(event.index, event.piece, offsets[event.index], event.deltas)
                if part is not None:
                    yield encoded(part, position, event.index)
            event = await call.next()
        if shape.usage_comes:
            yield encoded(shape.usage(call.answers, prompts, call.readers), position)
        yield DONE
    except SpecInferError as error:
        yield encode(explain(error).content)
    except Exception as error:  # the HTTP status was sent already, so the error becomes an event
        log.exception("a stream failed; the client gets an error event")
        yield encode(internal_error(error).content)


class AnswerWriter(Protocol):
    """Writes one answer: whole, or as events in this order, named by their `type`."""

    def whole(self, answer: Answer, reader: AnswerReader | None) -> dict[str, Any]: ...
    def begin(self, answer: Answer) -> list[dict[str, Any]]: ...
    def push(self, text: str, deltas: Sequence[Delta] | None) -> list[dict[str, Any]]: ...
    def end(self, answer: Answer, reader: AnswerReader | None) -> list[dict[str, Any]]: ...
    def failure(self, error: ApiError) -> dict[str, Any]: ...


def parts_of(answer: Answer, reader: AnswerReader | None) -> list[Delta]:
    """Return a whole answer as deltas: its reasoning, text and calls."""
    message = {"content": answer.text} if reader is None else reader.message
    return [
        {name: message[name]} for name in ("reasoning_content", "content", "tool_calls") if message.get(name)
    ]


async def named_events(
    call: Call, written: AnswerWriter, explain: Callable[[SpecInferError], ApiError]
) -> AsyncIterator[bytes]:
    """Yield the named events of a call with one choice."""
    async for event in _written_events(call, written, explain):
        yield encode(event, event=event.get("type", ""))


async def _written_events(
    call: Call, written: AnswerWriter, explain: Callable[[SpecInferError], ApiError]
) -> AsyncIterator[dict[str, Any]]:
    answer, reader = call.answers[0], call.readers[0]
    try:
        for event in written.begin(answer):
            yield event
        while (new := await call.next()) is not None:
            text, deltas = ("", new.deltas or []) if new.piece is None else (new.piece.text, new.deltas)
            for event in written.push(text, deltas):
                yield event
        for event in written.end(answer, reader):
            yield event
    except SpecInferError as error:
        yield written.failure(explain(error))
    except Exception as error:  # the HTTP status was sent already, so the error becomes an event
        log.exception("a stream failed; the client gets an error event")
        yield written.failure(internal_error(error))


class EventStream(Response):
    """Send events until they end or the client closes its connection."""

    media_type = "text/event-stream"

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        gone: Callable[[], None],
        ending: asyncio.Event,
        failure: Callable[[ApiError], dict[str, Any]] = attrgetter("content"),
    ) -> None:
        """Create a stream of events.

        `close` is always awaited at the end. `gone` is called if the client closed its connection early. `ending`
        is set when the service ends; `failure` makes the event of that error.
        """
        self._failure = failure
        self.status_code, self.background = 200, None
        self._lines, self._close, self._gone, self._ending = lines, close, gone, ending
        self._spoke = False
        self.init_headers(HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream, as an ASGI application."""
        try:
            await while_wanted(self._send(send), receive, self._ending)
        except ClientGoneError:
            self._gone()
        except EndingError as error:
            event = self._failure(api_error(error, {}))
            await send({"type": "http.response.body", "body": encode(event, event=event.get("type", ""))})
        finally:
            await self._close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        silence = asyncio.create_task(self._break_silence(send))
        try:
            async for line in self._lines:
                self._spoke = True
                await send({"type": "http.response.body", "body": line, "more_body": True})
        finally:
            silence.cancel()
            await asyncio.gather(silence, return_exceptions=True)
        await send({"type": "http.response.body", "body": b""})

    async def _break_silence(self, send: Send) -> None:
        """Send a comment, which clients ignore, after `_QUIET_S` without events."""
        while True:
            self._spoke = False
            await asyncio.sleep(_QUIET_S)
            if not self._spoke:
                await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
