"""How many bytes of messages go over the wire, counted where gRPC serializes them anyway.

`Message.ByteSize()` would walk through every message once more; here the length of what was serialized, or
is about to be parsed, is read: 1.5 us a message. Framing, headers and TLS are not counted.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from prometheus_client import Counter

Codec: TypeAlias = Callable[[Any], Any] | None
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class WireMeter:
    """Counts what is exchanged with one kind of peer."""

    def __init__(self, sent: Counter, received: Counter) -> None:
        self._sent, self._received = sent, received

    def serializer(self, serialize: Codec) -> Callable[[Any], Any]:
        """The same serializer, counted."""
        assert serialize is not None, "our stubs and servicers serialize"
        count = self._sent.inc

        def counted(message: Any) -> Any:
            data = serialize(message)
            count(len(data))
            return data

        return counted

    def deserializer(self, parse: Codec) -> Callable[[Any], Any]:
        """The same parser, counted."""
        assert parse is not None, "our stubs and servicers parse"
        count = self._received.inc

        def counted(data: Any) -> Any:
            count(len(data))
            return parse(data)

        return counted


class MeteredChannel:
    """What a generated stub needs of a channel, counted; closing is the channel's own matter."""

    def __init__(self, channel: grpc.aio.Channel, meter: WireMeter) -> None:
        self._channel, self._meter = channel, meter

    def unary_unary(self, method: str, **codecs: Any) -> Any:
        """See `grpc.aio.Channel`."""
        return self._channel.unary_unary(method, **self._counted(**codecs))

    def unary_stream(self, method: str, **codecs: Any) -> Any:
        """See `grpc.aio.Channel`."""
        return self._channel.unary_stream(method, **self._counted(**codecs))

    def stream_stream(self, method: str, **codecs: Any) -> Any:
        """See `grpc.aio.Channel`."""
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
"""What stubs are made of."""


class MeterInterceptor(grpc.aio.ServerInterceptor):
    """Counts the messages of a server's own methods; not those of health and reflection."""

    def __init__(self, meter: WireMeter, prefix: str = "/specinfer.") -> None:
        self._meter, self._prefix = meter, prefix

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's handler, with counted codecs."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
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
