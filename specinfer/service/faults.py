"""Protect a server from exceptions, too many calls without key, late messages.

By default, gRPC writes an unexpected exception to the log and to the caller's status. Here the status is INTERNAL with
the exception's type, without values of the request.
"""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc

from specinfer.errors import ExhaustedError, FaultError, InvalidInputError, SpecInferError
from specinfer.wire.status import abort

log = logging.getLogger(__name__)

OURS = "/specinfer."
"""Prefix of SpecInfer's methods; health and reflection have other prefixes."""
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Method: TypeAlias = Callable[[Any, Any], Any]
Places: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Creates the context of an open call; entering may raise a `SpecInferError`."""
MESSAGE_S = 20.0
"""Maximum seconds between a call's headers and its message."""
KEYLESS_STREAMS, _KEYLESS_PART = 64, 8
"""Maximum open calls per health or reflection method: 64, or `max_calls` / 8."""
KEYLESS_S = 3600.0
"""Maximum seconds of a health or reflection call; clients reconnect."""


class KeylessInterceptor(grpc.aio.ServerInterceptor):
    """Limits open calls of health and reflection, which need no API key."""

    def __init__(self, max_calls: int | None = None) -> None:
        part = KEYLESS_STREAMS if max_calls is None else max(1, max_calls // _KEYLESS_PART)
        self._max_streams, self._open = min(KEYLESS_STREAMS, part), Counter[str]()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler; health and reflection have limits.

        The message of a unary call must arrive within `MESSAGE_S`.
        """
        handler, name = await continuation(handler_call_details), handler_call_details.method
        if handler is None or (name.startswith(OURS) and handler.unary_unary is None):
            return handler
        if name.startswith(OURS):
            return placed(handler, nullcontext)
        return placed(handler, partial(self._place, name), KEYLESS_S)

    @contextmanager
    def _place(self, name: str) -> Iterator[None]:
        if self._open[name] >= self._max_streams:
            raise ExhaustedError(f"{name}: {self._max_streams} calls are open, no more are allowed")
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1


def placed(handler: "grpc.RpcMethodHandler[Any, Any]", place: Places, max_s: float | None = None) -> Handler:
    """Return a handler that enters `place` before it reads a call's message.

    gRPC starts a unary handler only when its message has arrived, however late. This handler reads the
    message itself, so that a call without a message ends after `MESSAGE_S` seconds.

    Args:
        handler: handler of any method, except with a stream of requests and one reply.
        place: creates the context of an open call; raises a `SpecInferError` if too many calls are open.
        max_s: maximum seconds of a call; None: no limit.
    """
    method: Method | None = handler.unary_unary or handler.unary_stream or handler.stream_stream
    assert method is not None, "stream_unary methods are not supported"
    takes_stream, replies_once = handler.stream_stream is not None, handler.unary_unary is not None

    async def call(messages: AsyncIterator[Any], context: Context) -> None:
        try:
            with place():
                message = messages if takes_stream else await _first(messages)
                async with asyncio.timeout(max_s):
                    if replies_once:
                        await context.write(await method(message, context))
                        return
                    if not inspect.isasyncgenfunction(method):
                        await method(message, context)
                        return
                    async with aclosing(method(message, context)) as replies:
                        async for reply in replies:
                            await context.write(reply)
        except SpecInferError as error:
            await abort(context, error)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"the call took over {max_s} s")

    return grpc.stream_stream_rpc_method_handler(
        call, handler.request_deserializer, handler.response_serializer
    )


async def _first(messages: AsyncIterator[Any]) -> Any:
    try:
        async with asyncio.timeout(MESSAGE_S):
            return await anext(aiter(messages))
    except (TimeoutError, StopAsyncIteration):
        raise InvalidInputError(
            "message", None, f"must arrive within {MESSAGE_S:.0f} s after the headers"
        ) from None


class FaultInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls with unexpected exceptions as INTERNAL, and logs them."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler, which converts unexpected exceptions."""
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
        except Exception as error:  # noqa: BLE001  a bug may raise anything
            await _end(name, context, error)

    return call


def _guarded_stream(name: str, method: Method) -> Method:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(request, context)) as replies:  # close it when this call ends
                async for reply in replies:
                    yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  a bug may raise anything
            await _end(name, context, error)

    return call


async def _end(name: str, context: Context, error: Exception) -> NoReturn:
    log.error("%s failed", name, exc_info=error)
    await abort(context, SpecInferError(FaultError("internal error", error).for_logs))
