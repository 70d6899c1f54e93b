"""Convert between protobuf messages and requests."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeAlias

import grpc

from gateway.api.callers import Callers
from gateway.api.decode import RequestDecoder, idempotency_key_of
from gateway.api.encode import encode_finish, encode_logprobs
from gateway.api.request_service import RequestService
from gateway.api.status import StatusReporter
from gateway.api.watch.pictures import WatchReplies
from gateway.session.token_stream import StreamChunk, TokenStream
from specinfer.errors import SpecInferError
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.request import GenerationRequest
from specinfer.scheduling.text import TextStream
from specinfer.service.tracing import HEADER
from specinfer.system.log_lines import REQUEST_ID
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import generation_pb2, generation_pb2_grpc
from specinfer.wire.status import abort, status_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves `specinfer.v1.Generation`."""

    def __init__(
        self,
        requests: RequestService,
        decoder: RequestDecoder,
        tokenizer: Tokenizer,
        callers: Callers,
        status: StatusReporter,
        watches: WatchReplies,
        refused: Callable[[grpc.StatusCode], None],
    ) -> None:
        """Create the servicer; it calls `refused` with each refused stream's status."""
        self._requests, self._decoder, self._tokenizer = requests, decoder, tokenizer
        self._callers, self._status, self._refused = callers, status, refused
        self._watches = watches

    async def Generate(self, message: generation_pb2.GenerateRequest, context: Context) -> None:
        """Stream tokens; the last message contains the summary."""
        try:
            with self._counting_refusals():
                caller = self._callers.identify(context.invocation_metadata())
                request = await self._decoder.decode(message, caller)
                REQUEST_ID.set(request.request_id)
                token_stream = await self._requests.submit(
                    request, idempotency_key_of(message, caller), caller, _traceparent(context)
                )
        except SpecInferError as error:
            await abort(context, error)
        await self._stream(token_stream, 0, context)

    async def Attach(self, message: generation_pb2.AttachRequest, context: Context) -> None:
        """Stream a request's tokens after the first `from_token` tokens."""
        try:
            with self._counting_refusals():
                caller = self._callers.identify(context.invocation_metadata())
                self._decoder.check_request_id(message.request_id)
                REQUEST_ID.set(message.request_id)
                token_stream = await self._requests.attach(message.request_id, message.from_token, caller)
        except SpecInferError as error:
            await abort(context, error)
        await self._stream(token_stream, message.from_token, context)

    async def Cancel(
        self, message: generation_pb2.CancelRequest, context: Context
    ) -> generation_pb2.CancelReply:
        """Cancel a request, whichever gateway runs it."""
        try:
            caller = self._callers.identify(context.invocation_metadata())
            self._decoder.check_request_id(message.request_id)
            await self._requests.cancel(message.request_id, caller)
        except SpecInferError as error:
            await abort(context, error)
        return generation_pb2.CancelReply()

    async def Status(
        self, message: generation_pb2.StatusRequest, context: Context
    ) -> generation_pb2.StatusReply:
        """Return the state of gateways, verifiers and speculators."""
        try:
            caller = self._callers.identify(context.invocation_metadata())
        except SpecInferError as error:
            await abort(context, error)
        reply = self._status.reply()
        reply.caller = caller.name
        return reply

    async def Tokenize(
        self, message: generation_pb2.TokenizeRequest, context: Context
    ) -> generation_pb2.TokenizeReply:
        """Return the tokens of a prompt."""
        try:
            caller = self._callers.identify(context.invocation_metadata())
            ids = await self._decoder.tokenize(message, caller)
        except SpecInferError as error:
            await abort(context, error)
        return generation_pb2.TokenizeReply(ids=ids)

    async def Detokenize(
        self, message: generation_pb2.DetokenizeRequest, context: Context
    ) -> generation_pb2.DetokenizeReply:
        """Return the text of token ids."""
        try:
            caller = self._callers.identify(context.invocation_metadata())
            text = await self._decoder.detokenize(message.ids, caller)
        except SpecInferError as error:
            await abort(context, error)
        return generation_pb2.DetokenizeReply(text=text)

    async def Watch(
        self, message: generation_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[generation_pb2.WatchReply]:
        """Stream the finished steps of one request, or of the caller's requests."""
        try:
            caller = self._callers.identify(context.invocation_metadata())
            self._decoder.check_request_id(message.request_id)
            async with aclosing(self._watches.of(message.request_id, caller)) as replies:
                async for reply in replies:
                    yield reply
        except SpecInferError as error:
            await abort(context, error)

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        """Pass the status of an error in this context to `refused`."""
        try:
            yield
        except SpecInferError as error:
            self._refused(status_of(error))
            raise
        except Exception:  # counted, then raised again
            self._refused(grpc.StatusCode.INTERNAL)
            raise

    async def _stream(self, token_stream: TokenStream, position: int, context: Context) -> None:
        """Write all tokens after the first `position`, until the request ends."""
        request = token_stream.request
        text = TextStream(self._tokenizer, request.stop_strings, request.prompt, request.stop_token_ids)
        with self._requests.reading(token_stream) as token_stream:
            try:
                await context.write(_accepted(request, position))
                if position:
                    await token_stream.reach(position)
                    text.skip(token_stream.tokens[:position])
                ending = None
                while ending is None:
                    await token_stream.reach(position + 1)
                    chunk = token_stream.since(position)
                    position, ending = position + len(chunk.tokens), chunk.ending
                    if ending is not None and ending.failure is not None:
                        raise ending.failure
                    await context.write(self._reply(token_stream.request, chunk, text))
            except SpecInferError as error:
                await abort(context, error)

    def _reply(
        self, request: GenerationRequest, chunk: StreamChunk, text: TextStream
    ) -> generation_pb2.GenerateReply:
        piece = text.push(chunk.tokens, last=chunk.ending is not None)
        return generation_pb2.GenerateReply(
            request_id=request.request_id,
            position=chunk.position,
            token_ids=chunk.tokens,
            text=piece.text,
            **(encode_logprobs(chunk, self._tokenizer) if request.logprobs else {}),
            summary=_summary(chunk.ending, text.stop_string) if chunk.ending is not None else None,
        )


def _accepted(request: GenerationRequest, position: int) -> generation_pb2.GenerateReply:
    """Return the first message of a stream, before any token."""
    return generation_pb2.GenerateReply(
        request_id=request.request_id,
        position=position,
        prompt_tokens=len(request.prompt),
        begins_in_reasoning=request.begins_in_reasoning,
    )


def _traceparent(context: Context) -> str:
    """Return the caller's W3C trace context; empty if none was sent."""
    values = [value for name, value in context.invocation_metadata() or () if name == HEADER]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""


def _summary(ending: Ending, stop_string: str) -> generation_pb2.Summary:
    return generation_pb2.Summary(
        stop_string=stop_string,
        finish_reason=encode_finish(ending.finish),
        prompt_tokens=ending.prompt_tokens,
        cached_tokens=ending.cached_tokens,
        new_tokens=ending.new_tokens,
        stats=_stats(ending),
        ttft_seconds=ending.ttft_s,
        total_seconds=ending.total_s,
        queue_seconds=ending.queue_s,
        seed=ending.seed,
    )


def _stats(ending: Ending) -> generation_pb2.SpeculationStats:
    return generation_pb2.SpeculationStats(
        steps=ending.steps,
        drafted=ending.drafted,
        accepted=ending.accepted,
        acceptance_histogram=ending.histogram,
        speculators=[
            generation_pb2.SpeculatorStats(name=name, drafted=drafted, accepted=accepted, wins=wins)
            for name, (drafted, accepted, wins) in ending.speculators.items()
        ],
        lossy=ending.lossy,
    )
