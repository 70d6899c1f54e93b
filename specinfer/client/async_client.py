"""An asyncio client of `specinfer.v1.Generation`, which survives lost gateways.

It is the I/O around `Resume`: calls, clocks, waiting. `Resume` decides about news and retries.
"""

import asyncio
import copy
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeAlias, Unpack

import grpc

from specinfer.client.answer import Answer
from specinfer.client.errors import CUT_SHORT, Failure
from specinfer.client.gateways import Gateways, call_metadata, read_addresses
from specinfer.client.options import RequestOptions, shows_options
from specinfer.client.request import Prompt, as_request
from specinfer.client.resume import Item, NextCall, Patience, Resume, Retry
from specinfer.client.stream import AsyncStream
from specinfer.client.watching import watch_steps
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.service.tls import ClientTls
from specinfer.v1 import generation_pb2

_ReplyCall: TypeAlias = "grpc.aio.UnaryStreamCall[Any, generation_pb2.GenerateReply]"
_ABANDON_TIMEOUT_S = 3.0
"""Timeout in seconds of the message that a request is abandoned."""
_END_TIMEOUT_S = 1.0
"""Timeout in seconds of the status after a summary."""


class AsyncClient:
    """Uses the first available gateway. An async context manager."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        api_key: str | None = None,
        tls: ClientTls | None = None,
        *,
        patience: Patience | None = None,
        on_retry: Callable[[Retry], None] = lambda _: None,
        traceparent: str = "",
    ) -> None:
        """Create a client, which connects on first use.

        Args:
            addresses: addresses of gateways that share a Redis; a string has commas between them.
            api_key: sent with every call; empty for none.
            tls: files of TLS towards the gateways; None for plaintext.
            patience: retries of lost streams; None for the default, a minute.
            on_retry: called with every failure that is not the end.
            traceparent: trace context (W3C) that the requests of this client belong to; empty for none.

        Raises:
            InvalidInputError: if there is no address, or one that is no host:port, or if the key or the trace
                context cannot be sent.
        """
        self._gateways = Gateways(read_addresses(addresses), tls)
        self._metadata = call_metadata(api_key, traceparent)
        self._patience, self._on_retry = patience or Patience(), on_retry
        self._calls: set[_ReplyCall] = set()
        self._abandoning: set[asyncio.Task[None]] = set()

    def for_caller(self, api_key: str | None, traceparent: str = "") -> "AsyncClient":
        """Return a client for another caller, with shared connections.

        Closing it closes them for all.

        Raises:
            InvalidInputError: if the key or the trace context cannot be sent.
        """
        other = copy.copy(self)
        other._metadata = call_metadata(api_key, traceparent)
        return other

    @shows_options
    def stream(
        self, prompt: Prompt | generation_pb2.GenerateRequest, **options: Unpack[RequestOptions]
    ) -> AsyncStream:
        """Return an answer's pieces. Reading the first sends the request.

        Args:
            prompt: the prompt, or a whole message without options.

        Raises:
            TypeError: for an unknown option.
            InvalidInputError: for an option that cannot be sent. The gateway reports other errors.
        """
        message = as_request(prompt, options)
        return AsyncStream(message.request_id, self._follow(message, self._resume(message.request_id)))

    def attach(self, request_id: str, from_token: int = 0) -> AsyncStream:
        """Return the rest of a request, after its first `from_token` tokens.

        The stream raises RequestFailedError with NOT_FOUND if no gateway knows the request.

        Raises:
            InvalidInputError: if `from_token` is no number of tokens.
        """
        if not 0 <= from_token < 2**32:
            raise InvalidInputError("from_token", from_token, "must be in [0, 2**32)")
        message = generation_pb2.GenerateRequest(request_id=request_id)
        return AsyncStream(request_id, self._follow(message, self._resume(request_id, from_token)))

    @shows_options
    async def generate(
        self,
        prompt: Prompt | generation_pb2.GenerateRequest,
        on_text: Callable[[str], None] = lambda _: None,
        **options: Unpack[RequestOptions],
    ) -> Answer:
        """Return the answer to a prompt.

        `on_text` is called with each piece of its text as it comes. If its task is cancelled, so is the
        request.

        Raises:
            TypeError: for an unknown option.
            InvalidInputError: for an option that cannot be sent.
            RequestFailedError: if a gateway refused or ended the request.
            StreamLostError: if no gateway continued it within the patience.
            BrokenStreamError: if a gateway left tokens out.
        """
        async with self.stream(prompt, **options) as stream:
            try:
                return await stream.read(on_text)
            except SpecInferError:
                raise  # a stream that was lost can be taken up again
            except BaseException:  # cancelled, or `on_text` failed: nobody waits for the rest
                self._abandon_in_background(stream.request_id)
                raise

    async def cancel(self, request_id: str) -> None:
        """Stop a running request.

        Raises:
            RequestFailedError: NOT_FOUND if it is not running.
            UnavailableError: if no gateway answers.
        """
        message = generation_pb2.CancelRequest(request_id=request_id)
        await self._gateways.ask("Cancel", message, self._metadata)

    async def abandon(self, request_id: str) -> None:
        """Stop an abandoned request, if a gateway answers within three seconds.

        Otherwise the gateway's linger time ends it.
        """
        with suppress(SpecInferError, TimeoutError):
            async with asyncio.timeout(_ABANDON_TIMEOUT_S):
                await self.cancel(request_id)

    def _abandon_in_background(self, request_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self.abandon(request_id))
        self._abandoning.add(task)
        task.add_done_callback(self._abandoning.discard)

    async def status(self) -> generation_pb2.StatusReply:
        """Return the state of the system.

        Raises:
            RequestFailedError: if a gateway refuses.
            UnavailableError: if none answers.
        """
        message = generation_pb2.StatusRequest()
        reply: generation_pb2.StatusReply = await self._gateways.ask("Status", message, self._metadata)
        return reply

    async def tokenize(self, message: generation_pb2.TokenizeRequest) -> Sequence[int]:
        """Return the tokens of a prompt, as the model reads it.

        Raises:
            RequestFailedError: if a gateway refuses.
            UnavailableError: if none answers.
        """
        reply: generation_pb2.TokenizeReply = await self._gateways.ask("Tokenize", message, self._metadata)
        return reply.ids

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones by their names.

        Raises:
            RequestFailedError: if a gateway refuses.
            UnavailableError: if none answers.
        """
        message = generation_pb2.DetokenizeRequest(ids=ids)
        reply = await self._gateways.ask("Detokenize", message, self._metadata)
        return str(reply.text)

    def watch(self, request_id: str = "") -> AsyncGenerator[generation_pb2.WatchReply, None]:
        """Yield live steps of a request, or of all of this key.

        The request may run at any gateway, and may arrive later. See `Generation.Watch` and
        `specinfer.client.watching`, whose errors this raises. Close it with `aclose`.
        """
        return watch_steps(self._gateways, self._metadata, request_id)

    async def close(self) -> None:
        """Close all connections; streams that are still read end with UnavailableError.

        What was cancelled just before is waited for: gateways receive it.
        """
        await asyncio.gather(*self._abandoning, return_exceptions=True)
        for call in self._calls:
            call.cancel()
        await self._gateways.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _resume(self, request_id: str, attach_from: int | None = None) -> Resume:
        return Resume(
            request_id,
            self._gateways.addresses,
            self._patience,
            random.random,
            first_address=self._gateways.first,
            attach_from=attach_from,
        )

    async def _follow(
        self, request: generation_pb2.GenerateRequest, resume: Resume
    ) -> AsyncGenerator[Item, None]:
        while True:
            attempt = resume.call
            call = self._open(request, attempt)
            self._calls.add(call)
            try:
                while not isinstance(event := await self._read(call), Failure):
                    self._gateways.first = attempt.address
                    for item in resume.replied(event):
                        yield item
                    if resume.ended:
                        await self._let_end(call)
                        return
            finally:
                self._calls.discard(call)
                call.cancel()
            retry = resume.failed(event, time.monotonic())
            self._on_retry(retry)
            await self._gateways.pause(retry.wait_s)

    async def _read(self, call: _ReplyCall) -> generation_pb2.GenerateReply | Failure:
        """Return the next reply, or the call's failure.

        gRPC raises CancelledError for any cancelled call.

        Raises:
            UnavailableError: if it was `close`.
        """
        try:
            reply = await call.read()
        except grpc.aio.AioRpcError as error:
            return Failure.of(error)
        except asyncio.CancelledError as error:
            self._gateways.heed_close(error)
        return reply if isinstance(reply, generation_pb2.GenerateReply) else CUT_SHORT

    async def _let_end(self, call: _ReplyCall) -> None:
        """Wait for the status after the summary: the gateway sees no hang-up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._read(call)

    def _open(self, request: generation_pb2.GenerateRequest, call: NextCall) -> _ReplyCall:
        stub = self._gateways.stub(call.address)
        opened: _ReplyCall
        if call.attach_from is None:
            opened = stub.Generate(request, metadata=self._metadata)
        else:
            message = generation_pb2.AttachRequest(request_id=request.request_id, from_token=call.attach_from)
            opened = stub.Attach(message, metadata=self._metadata)
        return opened
