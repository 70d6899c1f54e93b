"""Answers calls by requests to gateways: one body, its requests, one response. Keeps nothing between calls."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from http_svc.call import Call, ClientGoneError, Event, while_wanted
from http_svc.entry.callers import CallerKeys
from http_svc.entry.middleware import HttpMetrics
from http_svc.errors import api_error
from http_svc.models import Models
from http_svc.page_routes import watch
from http_svc.responses import CHAT, COMPLETION, Kind, ResponseShape
from http_svc.schemas import Body, ChatBody, CompletionBody
from http_svc.streaming import EventStream, event_lines, read_event_id
from http_svc.to_gateway import (
    chat_names,
    chat_requests,
    completion_names,
    completion_requests,
    wants_logprobs,
)
from specinfer.client import AsyncClient, AsyncStream
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.v1 import generation_pb2

_CLIENT_GONE = 499
"""nginx's status for a client that hung up; nobody reads it, but it is counted."""


class Door:
    """Serves `/v1`."""

    def __init__(
        self, callers: CallerKeys, models: Models, metrics: HttpMetrics, ending: asyncio.Event
    ) -> None:
        """Create the handlers; `ending` is set when calls that still run must end."""
        self._callers, self._models, self._metrics = callers, models, metrics
        self._ending = ending

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Serve `POST /v1/chat/completions`."""
        return await self._answer(CHAT, body, request, partial(chat_requests, body), chat_names(body))

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """Serve `POST /v1/completions`."""
        return await self._answer(
            COMPLETION, body, request, partial(completion_requests, body), completion_names()
        )

    async def models(self, request: Request) -> Response:
        """Serve `GET /v1/models`."""
        return JSONResponse({"object": "list", "data": await self._describe(request)})

    async def model(self, name: str, request: Request) -> Response:
        """Serve `GET /v1/models/NAME`."""
        (described,) = await self._describe(request, name)
        return JSONResponse(described)

    async def watch(self, request: Request) -> Response:
        """Serve `GET /v1/watch`."""
        try:
            return await watch(self._callers.client_of(request.headers), request, self._ending)
        except SpecInferError as error:
            raise api_error(error, {}) from error

    async def _describe(self, request: Request, name: str | None = None) -> list[dict[str, Any]]:
        try:
            return await self._models.describe(self._callers.client_of(request.headers), name)
        except SpecInferError as error:
            raise api_error(error, {}) from error

    async def _answer(
        self,
        kind: Kind,
        body: Body,
        request: Request,
        make: Callable[[str], Sequence[generation_pb2.GenerateRequest]],
        names: Mapping[str, str],
    ) -> Response:
        """Return the answer to a body.

        `make` makes the gateway's requests of a request id, `names` are the caller's names of their fields.
        """
        try:
            return await self._serve(kind, body, request, make(request.state.request_id), names)
        except SpecInferError as error:
            raise api_error(error, names) from error

    async def _serve(
        self,
        kind: Kind,
        body: Body,
        request: Request,
        requests: Sequence[generation_pb2.GenerateRequest],
        names: Mapping[str, str],
    ) -> Response:
        caller = self._callers.client_of(request.headers)
        model = await self._models.check(caller, body.model)
        streams, start = self._open(caller, body, request, requests)
        usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        shape = ResponseShape(
            *(kind, request.state.request_id, model, int(time.time()), usage, wants_logprobs(body)),
            tools=isinstance(body, ChatBody) and bool(body.callable),
        )
        prompts = len(requests) // (body.n or 1)
        call = Call(caller, streams, lingers=bool(body.resumable))
        try:
            if not body.stream:
                answers = await while_wanted(call.finish(), request.receive, self._ending)
                await call.close()
                return JSONResponse(shape.whole(answers, prompts))
            first: Event | None = await while_wanted(call.next(), request.receive, self._ending)
        except ClientGoneError:
            self._metrics.hung_up.inc()
            await call.close()
            return Response(status_code=_CLIENT_GONE)
        except BaseException:
            await call.close()
            raise
        lines = event_lines(call, first, shape, prompts, start, lambda error: api_error(error, names))
        return EventStream(lines, call.close, self._metrics.hung_up.inc, self._ending)

    def _open(
        self,
        caller: AsyncClient,
        body: Body,
        request: Request,
        requests: Sequence[generation_pb2.GenerateRequest],
    ) -> tuple[list[AsyncStream], int | None]:
        """Return the streams of a call, and how many tokens of the first one its client has.

        The number is None where events are to have no ids.
        """
        last = request.headers.get("last-event-id")
        if last is None:
            in_points = isinstance(body, ChatBody) and body.decomposition == "skeleton"
            answer = caller.skeleton if in_points else caller.stream
            return [answer(one) for one in requests], 0 if body.resumable else None
        if not body.resumable:
            raise InvalidInputError("Last-Event-ID", last, "only with resumable")
        request_id, position = read_event_id(last)
        request.state.request_id = request_id
        self._metrics.resumed.inc()
        return [caller.attach(request_id, position)], position
