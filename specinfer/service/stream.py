"""Exchange requests and replies on long-lived streams, and count bytes.

A stream opens on first use and reopens after a failure. A round trip on an open stream costs half of a unary
call (benchmarks/tried.md#streams).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar, cast

import grpc

from specinfer.errors import UnavailableError
from specinfer.service.faults import OURS
from specinfer.service.metrics import StepCounter

Codec: TypeAlias = Callable[[Any], Any] | None
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class WireMeter:
    """Counts bytes exchanged with one kind of peer."""

    def __init__(self, counter: StepCounter, peer: str) -> None:
        """Create a meter; the counter has the labels `peer` and `direction`."""
        self._counter, self._peer = counter, peer
        for direction in ("sent", "received"):
            counter.add(0, peer, direction)

    def serializer(self, serialize: Codec) -> Callable[[Any], Any]:
        """Return a serializer that also counts bytes."""
        assert serialize is not None, "generated stubs and servicers have a serializer"
        count, peer = self._counter.add, self._peer

        def counted(message: Any) -> Any:
            data = serialize(message)
            count(len(data), peer, "sent")
            return data

        return counted

    def deserializer(self, parse: Codec) -> Callable[[Any], Any]:
        """Return a deserializer that also counts bytes."""
        assert parse is not None, "generated stubs and servicers have a deserializer"
        count, peer = self._counter.add, self._peer

        def counted(data: Any) -> Any:
            count(len(data), peer, "received")
            return parse(data)

        return counted


class MeteredChannel:
    """Channel for generated stubs that counts bytes; close the inner channel."""

    def __init__(self, channel: grpc.aio.Channel, meter: WireMeter) -> None:
        self._channel, self._meter = channel, meter

    def unary_unary(self, method: str, **codecs: Any) -> Any:
        """Return `grpc.aio.Channel.unary_unary` with counting codecs."""
        return self._channel.unary_unary(method, **self._counted(**codecs))

    def unary_stream(self, method: str, **codecs: Any) -> Any:
        """Return `grpc.aio.Channel.unary_stream` with counting codecs."""
        return self._channel.unary_stream(method, **self._counted(**codecs))

    def stream_stream(self, method: str, **codecs: Any) -> Any:
        """Return `grpc.aio.Channel.stream_stream` with counting codecs."""
        return self._channel.stream_stream(method, **self._counted(**codecs))

    def _counted(
        self, request_serializer: Codec, response_deserializer: Codec, **more: Any
    ) -> dict[str, Any]:
        return {
            "request_serializer": self._meter.serializer(request_serializer),
            "response_deserializer": self._meter.deserializer(response_deserializer),
            **more,
        }


Channel: TypeAlias = grpc.aio.Channel | MeteredChannel
"""Channels from which generated stubs can be created."""


class MeterInterceptor(grpc.aio.ServerInterceptor):
    """Counts bytes of a server's methods, except health and reflection."""

    def __init__(self, meter: WireMeter) -> None:
        self._meter = meter

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler, with counting codecs."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OURS):
            return handler
        codecs = (
            self._meter.deserializer(handler.request_deserializer),
            self._meter.serializer(handler.response_serializer),
        )
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(handler.unary_unary, *codecs)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(handler.unary_stream, *codecs)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(handler.stream_stream, *codecs)
        return handler


Request = TypeVar("Request")
Reply = TypeVar("Reply")


class MessageStream(Generic[Request, Reply]):
    """Exchanges messages on one stream; exchanges must not overlap."""

    def __init__(
        self, name: str, open_stream: "Callable[[], grpc.aio.StreamStreamCall[Request, Reply]]"
    ) -> None:
        self._name, self._open_stream = name, open_stream
        self._call: grpc.aio.StreamStreamCall[Request, Reply] | None = None

    async def exchange(self, request: Request, patience_s: float | None = None) -> Reply:
        """Send a message, and return the next reply.

        Args:
            request: the message to send.
            patience_s: timeout in seconds; None: no timeout.
        """
        call = self._call
        if call is None:
            call = self._call = self._open_stream()
        try:
            async with asyncio.timeout(patience_s):
                await call.write(request)
                reply = await call.read()
        except TimeoutError as error:
            self.reset()
            raise UnavailableError(f"{self._name}: no answer within {patience_s} s") from error
        except asyncio.CancelledError:
            self.reset()  # or the next exchange would receive this reply
            raise
        except grpc.aio.AioRpcError as error:
            self.reset()
            raise UnavailableError(f"{self._name}: {error.details()}") from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            self.reset()
            raise UnavailableError(f"{self._name}: {error}") from error
        if reply is grpc.aio.EOF:
            self.reset()
            raise UnavailableError(f"{self._name}: the stream was closed")
        return cast(Reply, reply)

    def reset(self) -> None:
        """Cancel the stream; the next exchange opens a new one."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
