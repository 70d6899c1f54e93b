"""Call a servicer of the same process directly, without sockets.

    server = InProcessServer("verifier")
    add_VerifierServicer_to_server(servicer, server)
    stub = VerifierStub(open_channel("in-process:verifier"))

Stubs, servicers and errors are gRPC's. Messages are passed by reference, so a sent message must not be
changed. A call runs as a task of the caller's event loop; cancelling the call cancels the servicer's method.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import grpc

log = logging.getLogger(__name__)
SCHEME = "in-process:"
"""Scheme of the addresses of in-process services."""
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
_ENDED = object()
_servers: dict[str, "InProcessServer"] = {}


class InProcessServer:
    """Server for `in-process:NAME`: registers servicers' methods until `close`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._methods: dict[str, Any] = {}
        _servers[name] = self

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Add a service's methods; called by generated `add_..._to_server`."""
        self._methods |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Do nothing: generated code also adds its methods in this older form."""

    def method(self, path: str) -> Any:
        """Return the handler of a method; None if unknown."""
        return self._methods.get(path)

    def close(self) -> None:
        """Refuse new calls."""
        self._methods.clear()
        _servers.pop(self.name, None)


class InProcessChannel:
    """Channel with the methods of `grpc.aio.Channel` that stubs use."""

    def __init__(self, address: str) -> None:
        """Create a channel to `in-process:NAME`; its server may be created later."""
        self._name = address.removeprefix(SCHEME)
        self._calls: set[_StreamCall] = set()

    def unary_unary(self, method: str, **_: Any) -> Any:
        """Return a callable of a method with one request and one reply."""

        async def call(
            request: Any,
            timeout: float | None = None,  # noqa: ASYNC109  as in gRPC
            metadata: Metadata = (),
        ) -> Any:
            context = _CallContext(metadata)
            try:
                async with asyncio.timeout(timeout):
                    return await _guarded(self._handler(method).unary_unary(request, context))
            except TimeoutError as error:
                raise _failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from error

        return call

    def unary_stream(self, method: str, **_: Any) -> Any:
        """Return a callable of a method with a stream of replies."""

        def call(request: Any, metadata: Metadata = ()) -> "_StreamCall":
            return self._open(lambda context: self._handler(method).unary_stream(request, context), metadata)

        return call

    def stream_stream(self, method: str, **_: Any) -> Any:
        """Return a callable of a method with streams both ways."""

        def call(metadata: Metadata = ()) -> "_StreamCall":
            opened: _StreamCall
            opened = self._open(
                lambda context: self._handler(method).stream_stream(opened.requests(), context), metadata
            )
            return opened

        return call

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def _open(self, begin: Any, metadata: Metadata) -> "_StreamCall":
        call = _StreamCall(begin, _CallContext(metadata))
        self._calls.add(call)
        call.task.add_done_callback(lambda _: self._calls.discard(call))
        return call

    def _handler(self, method: str) -> Any:
        server = _servers.get(self._name)
        if server is None:
            raise _failed(grpc.StatusCode.UNAVAILABLE, f"no service {self._name} in this process")
        handler = server.method(method)
        if handler is None:
            raise _failed(grpc.StatusCode.UNIMPLEMENTED, f"{self._name} has no method {method}")
        return handler


class _AbortedError(Exception):
    """A servicer has ended its call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Metadata) -> None:
        super().__init__(details)
        self.status = code, details, metadata


class _CallContext:
    """Context with the methods of `grpc.aio.ServicerContext` that servicers use."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = tuple(metadata)
        self.replies: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
        """Queue of one unread reply: methods wait for slow readers."""

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def write(self, reply: Any) -> None:
        await self.replies.put(reply)

    async def abort(self, code: grpc.StatusCode, details: str = "", metadata: Metadata = ()) -> NoReturn:
        raise _AbortedError(code, details, metadata)


class _StreamCall:
    """Call with the methods of `grpc.aio.StreamStreamCall` that clients use."""

    def __init__(self, begin: Any, context: _CallContext) -> None:
        self._context = context
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.ensure_future(_guarded(self._run(begin)))
        self.task.add_done_callback(self._end)

    async def requests(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not _ENDED:
            yield request

    async def write(self, request: Any) -> None:
        self._requests.put_nowait(request)

    async def done_writing(self) -> None:
        """End the stream of requests."""
        self._requests.put_nowait(_ENDED)

    async def read(self) -> Any:
        """Return the next reply, or `grpc.aio.EOF` at the end."""
        replies = self._context.replies
        if not (self.task.done() and replies.empty()) and (reply := await replies.get()) is not _ENDED:
            return reply
        self.task.result()
        return grpc.aio.EOF

    def cancel(self) -> bool:
        """Cancel the call; return whether it was still running."""
        return self.task.cancel()

    async def _run(self, begin: Any) -> None:
        replies = begin(self._context)
        if inspect.isasyncgen(replies):
            async for reply in replies:
                await self._context.write(reply)
        else:
            await replies

    def _end(self, task: "asyncio.Task[None]") -> None:
        """Queue the stream's end; if cancelled, drop the unread reply."""
        replies = self._context.replies
        if task.cancelled():
            while not replies.empty():
                replies.get_nowait()
        else:
            task.exception()  # mark as retrieved, or asyncio logs it
        if not replies.full():  # if full, `read` sees the ended task after the last reply
            replies.put_nowait(_ENDED)


async def _guarded(work: Any) -> Any:
    """Return a method's result; convert exceptions to gRPC errors."""
    try:
        return await work
    except _AbortedError as error:
        raise _failed(*error.status) from error
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        raise
    except Exception as error:
        log.exception("an in-process method failed; its call ends with UNKNOWN")
        raise _failed(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}") from error


def _failed(code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details)
