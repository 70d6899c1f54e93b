"""Status of a call when our code fails: INTERNAL and the kind of the error, without what it quotes.

By itself, gRPC writes the whole exception into its log and into the status that the caller gets and may log.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc

from specinfer.errors import FaultError, SpecInferError
from specinfer.wire.status import abort

log = logging.getLogger(__name__)

OURS = "/specinfer."
"""Beginning of the names of our own methods; health and reflection are left as they are."""
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Method: TypeAlias = Callable[[Any, Any], Any]


class FaultInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls in which an exception was not foreseen."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler, guarded."""
        handler, name = await continuation(handler_call_details), handler_call_details.method
        if handler is None or not name.startswith(OURS):
            return handler
        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(_guarded(name, handler.unary_unary), *codecs)
        if handler.unary_stream is not None:
            method = handler.unary_stream  # a generator of replies, or a coroutine that writes them
            guard = _guarded_stream if inspect.isasyncgenfunction(method) else _guarded
            return grpc.unary_stream_rpc_method_handler(guard(name, method), *codecs)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(
                _guarded_stream(name, handler.stream_stream), *codecs
            )
        return handler


def _guarded(name: str, method: Method) -> Method:
    async def call(request: Any, context: Context) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  a bug of ours may raise anything
            await _end(name, context, error)

    return call


def _guarded_stream(name: str, method: Method) -> Method:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(request, context)) as replies:  # ends it with us, not some time later
                async for reply in replies:
                    yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  a bug of ours may raise anything
            await _end(name, context, error)

    return call


async def _end(name: str, context: Context, error: Exception) -> NoReturn:
    log.error("%s failed", name, exc_info=error)
    await abort(context, SpecInferError(FaultError("internal error", error).for_logs))
