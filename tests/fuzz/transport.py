"""Channels between gateway and services in one process, which serialise messages.

An exception in a service, for which a real server would end the stream with UNKNOWN, reaches the fuzzer.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc

Tamper = Callable[[Any], Any]
"""Function from a message to the message that arrives."""


class InlineThread:
    """Replacement for `EngineThread` without a thread."""

    waiting = False

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class AbortedError(Exception):
    """Error that a servicer's `abort` raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)
        self.code, self.details = code, details


class InlineContext:
    """The part of `ServicerContext` that our servicers use."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Raise `AbortedError`."""
        details.encode()  # as gRPC does
        raise AbortedError(code, details)


class InlineChannel:
    """Channel that calls the methods of a servicer."""

    def __init__(
        self, servicer: Any, tamper: Tamper = lambda reply: reply, described: Tamper = lambda reply: reply
    ) -> None:
        """Store functions that change replies of streams (`tamper`) and of `Describe` (`described`)."""
        self._servicer, self._tamper, self._described = servicer, tamper, described

    def stream_stream(self, path: str, **codec: Any) -> Callable[..., "_Stream"]:
        """Implement `grpc.aio.Channel`."""
        method = getattr(self._servicer, path.rsplit("/", 1)[1])
        return lambda **_: _Stream(method, self._tamper)

    def unary_unary(self, path: str, **codec: Any) -> Callable[..., Any]:
        """Implement `grpc.aio.Channel`."""
        name = path.rsplit("/", 1)[1]
        method = getattr(self._servicer, name)

        async def call(request: Any, **_: Any) -> Any:
            reply = _serialised_copy(await method(_serialised_copy(request), InlineContext()))
            return self._described(reply) if name == "Describe" else reply

        return call

    async def close(self, grace: float | None = None) -> None:
        """Implement `grpc.aio.Channel`."""


class _Stream:
    """Stream whose reads run the servicer up to its next reply."""

    def __init__(self, method: Callable[..., AsyncIterator[Any]], tamper: Tamper) -> None:
        self._sent: deque[Any] = deque()
        self._replies, self._tamper = method(self._requests(), InlineContext()), tamper

    async def write(self, request: Any) -> None:
        self._sent.append(_serialised_copy(request))

    async def read(self) -> Any:
        try:
            return self._tamper(_serialised_copy(await anext(self._replies)))
        except StopAsyncIteration:
            return grpc.aio.EOF
        except AbortedError as error:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(error.code, nothing, nothing, error.details) from error

    def cancel(self) -> bool:
        return True

    async def _requests(self) -> AsyncIterator[Any]:
        while self._sent:
            yield self._sent.popleft()


def _serialised_copy(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())
