"""Handle calls: body -> requests to gateways -> response."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from http_svc import infill
from http_svc.body.bodies import Body, ChatBody, CompletionBody
from http_svc.body.converted import conversation_error, conversion_refusal
from http_svc.body.names import chat_names, completion_names, text_form_name, tokenize_names
from http_svc.body.tokens import DetokenizeBody, TokenizeBody
from http_svc.call import Call, ClientGoneError, while_wanted
from http_svc.calls.harmony import reader_of
from http_svc.entry.callers import CallerKeys
from http_svc.entry.middleware import REQUEST_ID_HEADER, HttpMetrics
from http_svc.errors import ApiError, api_error
from http_svc.identity import identity_of, with_headers
from http_svc.infill import InfillAnswer, InfillBody, completion_of, infill_requests
from http_svc.items import body as items
from http_svc.items.body import ResponsesBody, conversation_of
from http_svc.items.stream import ItemAnswer
from http_svc.messages import body as blocks
from http_svc.messages.answer import MessageAnswer
from http_svc.messages.body import CountBody, MessagesBody, chat_of
from http_svc.models import Models
from http_svc.page_routes import watch
from http_svc.responses import CHAT, COMPLETION, Kind, ResponseShape
from http_svc.streaming import AnswerWriter, EventStream, event_lines, named_events, read_event_id
from http_svc.to_gateway import (
    answer_form,
    chat_requests,
    completion_requests,
    tokenize_request,
    wants_logprobs,
)
from http_svc.tool_schemas import name_function
from specinfer.client import AsyncClient, AsyncStream
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.text.chat.forms import ChatForm
from specinfer.v1 import generation_pb2

_CLIENT_GONE = 499
"""Status for metrics if the client closed its connection, as in nginx."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A format that is converted to a body of OpenAI's, and its answer back."""

    convert: Callable[[Any], Any]
    """Return the chat or completion body of a body."""
    requests: Callable[[Any, Any, ChatForm, str], Sequence[generation_pb2.GenerateRequest]]
    """Return the gateway's request, by both bodies, the model's form and request id."""
    renamed: Mapping[str, str]
    """Field names of the format by those of OpenAI's body, where they differ."""
    written: Callable[[Any, str, str], AnswerWriter]
    """Return the writer of an answer, by body, request id and model."""

    def read(self, body: Any) -> tuple[Any, Callable[[SpecInferError], ApiError]]:
        """Return OpenAI's body, and what converts an error to the API's error."""
        try:
            chat = self.convert(body)
        except ValidationError as error:
            raise conversion_refusal(error, self.renamed) from error
        return chat, partial(conversation_error, chat=chat, renamed=self.renamed)


def _of_chat(
    _: Any, chat: ChatBody, form: ChatForm, identity: str
) -> Sequence[generation_pb2.GenerateRequest]:
    return chat_requests(chat, form, identity)


ITEMS = Converted(conversation_of, _of_chat, items.RENAMED, ItemAnswer)
BLOCKS = Converted(chat_of, _of_chat, blocks.RENAMED, MessageAnswer)
GAPS = Converted(completion_of, infill_requests, infill.RENAMED, InfillAnswer)


class Door:
    """Handlers of the HTTP API's paths."""

    def __init__(
        self, callers: CallerKeys, models: Models, metrics: HttpMetrics, ending: asyncio.Event
    ) -> None:
        """Create the handlers; running calls end when `ending` is set."""
        self._callers, self._models, self._metrics = callers, models, metrics
        self._ending = ending

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Serve `POST /v1/chat/completions`."""
        about = partial(name_function, functions=body.callable, form=text_form_name(body))
        explain = partial(api_error, names=chat_names(body), explain=about)
        return await self._answer(
            CHAT, body, request, lambda identity: chat_requests(body, self._models.form, identity), explain
        )

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """Serve `POST /v1/completions`."""
        explain = partial(api_error, names=completion_names())
        return await self._answer(COMPLETION, body, request, partial(completion_requests, body), explain)

    async def respond(self, body: ResponsesBody, request: Request) -> Response:
        """Serve `POST /v1/responses`."""
        return await self._convert(ITEMS, body, request)

    async def message(self, body: MessagesBody, request: Request) -> Response:
        """Serve `POST /v1/messages`."""
        return await self._convert(BLOCKS, body, request)

    async def infill(self, body: InfillBody, request: Request) -> Response:
        """Serve `POST /infill`."""
        return await self._convert(GAPS, body, request)

    async def count_tokens(self, body: CountBody, request: Request) -> Response:
        """Serve `POST /v1/messages/count_tokens`."""
        caller, (chat, explain) = self._callers.client_of(request.headers), BLOCKS.read(body)
        try:
            await self._models.check(caller, body.model)
            ids = await caller.tokenize(tokenize_request(chat))
        except SpecInferError as error:
            raise explain(error) from error
        return JSONResponse({"input_tokens": len(ids)})

    async def _convert(
        self, door: Converted, body: ResponsesBody | MessagesBody | InfillBody, request: Request
    ) -> Response:
        chat, explain = door.read(body)
        try:
            identity, caller = identity_of(request), self._callers.client_of(request.headers)
            model = await self._models.check(caller, body.model)
            asked = with_headers(request, door.requests(body, chat, self._models.form, identity))
            reader = reader_of(identity, answer_form(chat, self._models.form))
            call = Call(caller, [caller.stream(one) for one in asked], lingers=False, readers=[reader])
            gone = await self._until_begun(call, bool(chat.stream), request)
        except SpecInferError as error:
            raise explain(error) from error
        if gone is not None:
            return gone
        written = door.written(body, identity, model)
        if not chat.stream:
            return JSONResponse(written.whole(call.answers[0], reader))
        lines = named_events(call, written, explain)
        return EventStream(lines, call.close, self._metrics.hung_up.add, self._ending, written.failure)

    async def _until_begun(self, call: Call, stream: bool, request: Request) -> Response | None:
        """Wait until the gateways accept a stream, or an answer is complete.

        Returns a response to end with if the client closed its connection, else None.
        """
        request.state.answers = call.answers
        try:
            work = call.accepted() if stream else call.finish()
            await while_wanted(work, request.receive, self._ending)
        except ClientGoneError:
            self._metrics.hung_up.add()
            await call.close()
            return Response(status_code=_CLIENT_GONE)
        except BaseException:
            await call.close()
            raise
        if not stream:
            await call.close()
        return None

    async def tokenize(self, body: TokenizeBody, request: Request) -> Response:
        """Serve `POST /tokenize`."""
        caller = self._callers.client_of(request.headers)
        try:
            ids = list(await caller.tokenize(tokenize_request(body)))
            model, *_ = await self._models.describe(caller, body.model)
        except SpecInferError as error:
            raise api_error(error, tokenize_names()) from error
        max_len = model["max_model_len"]
        return JSONResponse({"count": len(ids), "max_model_len": max_len, "tokens": ids, "token_strs": None})

    async def detokenize(self, body: DetokenizeBody, request: Request) -> Response:
        """Serve `POST /detokenize`."""
        caller = self._callers.client_of(request.headers)
        try:
            if body.model is not None:
                await self._models.check(caller, body.model)
            return JSONResponse({"prompt": await caller.detokenize(body.tokens)})
        except SpecInferError as error:
            raise api_error(error, {"ids": "tokens"}) from error

    async def models(self, request: Request) -> Response:
        """Serve `GET /v1/models`."""
        return JSONResponse({"object": "list", "data": await self._describe(request)})

    async def props(self, request: Request) -> Response:
        """Serve `GET /props`."""
        try:
            return JSONResponse(await self._models.props(self._callers.client_of(request.headers)))
        except SpecInferError as error:
            raise api_error(error, {}) from error

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
        explain: Callable[[SpecInferError], ApiError],
    ) -> Response:
        """Return the answer to a body.

        `make` converts a request id to the gateway's requests; `explain` converts an error to the API's error.
        """
        try:
            request.state.identity = identity_of(request)
            return await self._serve(kind, body, request, make, explain)
        except SpecInferError as error:
            raise explain(error) from error

    async def _serve(
        self,
        kind: Kind,
        body: Body,
        request: Request,
        make: Callable[[str], Sequence[generation_pb2.GenerateRequest]],
        explain: Callable[[SpecInferError], ApiError],
    ) -> Response:
        caller = self._callers.client_of(request.headers)
        model = await self._models.check(caller, body.model)
        requests = with_headers(request, make(request.state.identity))
        streams, start = self._open(caller, body, request, requests)
        shape = ResponseShape(
            kind=kind,
            request_id=request.state.identity,
            model=model,
            created=int(time.time()),
            usage_comes=body.wants_usage,
            logprobs=wants_logprobs(body),
            form=answer_form(body, self._models.form),
            usage_always=body.wants_usage_always,
        )
        request.state.prompts = prompts = len(requests) // (body.n or 1)
        if isinstance(body, CompletionBody) and body.echo:
            texts = [await self._text_of(caller, one) for one in requests]
            shape = replace(shape, echoed=texts)
        readers = [shape.reader(index) for index in range(len(streams))]
        call = Call(caller, streams, lingers=bool(body.resumable), whole=not body.stream, readers=readers)
        gone = await self._until_begun(call, bool(body.stream), request)
        if gone is not None:
            return gone
        if not body.stream:
            return JSONResponse(shape.whole(call.answers, prompts, readers))
        lines = event_lines(call, shape, prompts, start, explain)
        return EventStream(lines, call.close, self._metrics.hung_up.add, self._ending)

    async def _text_of(self, caller: AsyncClient, request: generation_pb2.GenerateRequest) -> str:
        ids = request.tokens.ids
        return await caller.detokenize(ids) if ids else request.text or request.infill.prefix

    def _open(
        self,
        caller: AsyncClient,
        body: Body,
        request: Request,
        requests: Sequence[generation_pb2.GenerateRequest],
    ) -> tuple[list[AsyncStream], int | None]:
        """Return a call's streams, and the number of tokens already received.

        The number is None if the stream is not resumable, so that events get no ids.
        """
        last = request.headers.get("last-event-id")
        if last is None:
            return [caller.stream(one) for one in requests], 0 if body.resumable else None
        if not body.resumable:
            raise InvalidInputError("Last-Event-ID", last, "only with resumable = true")
        request_id, position = read_event_id(last)
        request.state.identity = request_id
        if REQUEST_ID_HEADER not in request.headers:
            request.state.request_id = request_id
        self._metrics.resumed.add()
        return [caller.attach(request_id, position)], position
