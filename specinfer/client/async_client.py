"""Provide an asyncio client of `specinfer.v1.Generation` that survives lost gateways.

This module makes calls, reads clocks and waits; `Resume` decides what to return and when to retry.
"""

import asyncio
import copy
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeAlias, Unpack, cast

import grpc

from specinfer.client.errors import CUT_SHORT, Failure
from specinfer.client.gateways import Gateways, call_metadata, read_addresses
from specinfer.client.options import RequestOptions, shows_options
from specinfer.client.request import Prompt, as_request
from specinfer.client.resume import NextCall, Patience, Resume, Retry
from specinfer.client.watching import watch_steps
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.request.answer import Answer, Item
from specinfer.request.fields import RequestFields
from specinfer.request.stream import AsyncStream
from specinfer.service.tls import ClientTls
from specinfer.v1 import generation_pb2

_ReplyCall: TypeAlias = "grpc.aio.UnaryStreamCall[Any, generation_pb2.GenerateReply]"
_ABANDON_TIMEOUT_S = 3.0
"""Timeout in seconds of `abandon`."""
_END_TIMEOUT_S = 1.0
"""Timeout in seconds for the stream's gRPC status after its summary."""


class AsyncClient:
    """Client of gateways that share a Redis; an async context manager."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        api_key: str | None = None,
        tls: ClientTls | None = None,
        *,
        patience: Patience | None = None,
        on_retry: Callable[[Retry], None] = lambda _: None,
        traceparent: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a client, which connects on first use.

        Args:
            addresses: gateways that share a Redis, as a sequence or a string with commas.
            api_key: API key sent with every call; None for no key.
            tls: TLS files for connections to the gateways; None for plaintext.
            patience: time and number of retries of lost streams; None: retry for 60 seconds.
            on_retry: called before each retry.
            traceparent: W3C trace context of this client's requests; empty for none.
            clock: returns monotonic seconds.

        Raises:
            InvalidInputError: if an address is missing or not host:port, or if the key or the trace context
                cannot be sent.
        """
        self._clock = clock
        self._gateways = Gateways(read_addresses(addresses), tls, clock)
        self._metadata = call_metadata(api_key, traceparent)
        self._patience, self._on_retry = patience or Patience(), on_retry
        self._calls: set[_ReplyCall] = set()
        self._abandoning: set[asyncio.Task[None]] = set()

    def for_caller(self, api_key: str | None, traceparent: str = "") -> "AsyncClient":
        """Return a client with another API key and the same connections.

        Closing either client closes the connections of both.

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
        """Return an answer's stream. Reading its first piece sends the request.

        Args:
            prompt: the prompt, or a complete message, which excludes options.

        Raises:
            TypeError: for an unknown option.
            InvalidInputError: for an option that cannot be sent. The gateway reports other errors.
        """
        message = as_request(prompt, options)
        return AsyncStream(message.request_id, self._follow(message, self._resume(message.request_id)))

    def ask(self, prompt: str, request: RequestFields) -> AsyncStream:
        """Return the stream of the answer to a prompt, as `Generator` does."""
        return self.stream(prompt, **cast(RequestOptions, vars(request)))

    def attach(self, request_id: str, from_token: int = 0) -> AsyncStream:
        """Return the stream of a request's answer after its first `from_token` tokens.

        The stream raises RequestFailedError with NOT_FOUND if no gateway knows the request.

        Raises:
            InvalidInputError: if `from_token` is not in [0, 2**32).
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

        `on_text` is called with each piece of text on arrival. Cancelling the calling task also cancels the
        request.

        Raises:
            TypeError: for an unknown option.
            InvalidInputError: for an option that cannot be sent.
            RequestFailedError: if a gateway refused or ended the request.
            StreamLostError: if no gateway continued the request within the patience.
            BrokenStreamError: if tokens are missing or repeated.
        """
        async with self.stream(prompt, **options) as stream:
            try:
                return await stream.read(on_text)
            except SpecInferError:
                raise  # do not abandon: the caller may attach to a lost stream
            except BaseException:  # cancelled, or `on_text` failed: nobody reads the rest
                self._abandon_in_background(stream.request_id)
                raise

    async def cancel(self, request_id: str) -> None:
        """Stop a running request.

        Raises:
            RequestFailedError: with NOT_FOUND, if the request is not running.
            UnavailableError: if no gateway answers.
        """
        message = generation_pb2.CancelRequest(request_id=request_id)
        await self._gateways.ask("Cancel", message, self._metadata)

    async def abandon(self, request_id: str) -> None:
        """Cancel a request; without success after three seconds, do nothing.

        An uncancelled request ends after the gateway's `linger_seconds`.
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
        """Return a prompt's token ids, with chat template and special tokens.

        Raises:
            RequestFailedError: if a gateway refuses.
            UnavailableError: if none answers.
        """
        reply: generation_pb2.TokenizeReply = await self._gateways.ask("Tokenize", message, self._metadata)
        return reply.ids

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens appear by name.

        Raises:
            RequestFailedError: if a gateway refuses.
            UnavailableError: if none answers.
        """
        message = generation_pb2.DetokenizeRequest(ids=ids)
        reply = await self._gateways.ask("Detokenize", message, self._metadata)
        return str(reply.text)

    def watch(self, request_id: str = "") -> AsyncGenerator[generation_pb2.WatchReply, None]:
        """Yield live steps of a request, or of this key's requests.

        The request may run at any gateway, and may arrive later. Errors are as for `watch_steps`. Close
        the generator with `aclose`.
        """
        return watch_steps(self._gateways, self._metadata, request_id)

    async def close(self) -> None:
        """Close all connections; open streams end with UnavailableError.

        Waits first for cancellations that are being sent.
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
            first_address=self._gateways.take_turn(),
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
                    self._gateways.answered(attempt.address)
                    for item in resume.replied(event):
                        yield item
                    if resume.ended:
                        await self._let_end(call)
                        return
            finally:
                self._calls.discard(call)
                call.cancel()
            self._gateways.failed(attempt.address, event)
            retry = resume.failed(event, self._clock())
            self._on_retry(retry)
            await self._gateways.pause(retry.wait_s)

    async def _read(self, call: _ReplyCall) -> generation_pb2.GenerateReply | Failure:
        """Return the next reply, or the call's failure."""
        try:
            reply = await call.read()
        except grpc.aio.AioRpcError as error:
            return Failure.of(error)
        except asyncio.CancelledError as error:
            self._gateways.heed_close(error)
        return reply if isinstance(reply, generation_pb2.GenerateReply) else CUT_SHORT

    async def _let_end(self, call: _ReplyCall) -> None:
        """Wait for the final status, so that the gateway sees no disconnect."""
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
