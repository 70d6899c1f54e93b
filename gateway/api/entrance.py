"""Authentication: refuse a call without a key before its message is read."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from gateway.api.callers import Caller, Callers
from specinfer.errors import ExhaustedError, SpecInferError
from specinfer.service.faults import OURS, Context, Handler, placed
from specinfer.wire.status import abort, status_of

STREAMS_PER_REQUEST = 4
"""Maximum streams of a caller per allowed request.

Clients that lost a stream and reconnect need more than one.
"""


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a key, and calls above a caller's limits.

    Without it, gRPC would read a message of up to 16 MiB, and wait for it without a limit, before it calls a
    method.
    """

    def __init__(self, callers: Callers, refused: Callable[[grpc.StatusCode], None]) -> None:
        """Create it; `refused` is called with every stream that is refused."""
        self._callers, self._refused = callers, refused
        self._streams, self._single = Counter[str](), Counter[str]()
        """Open calls by caller: streams, and calls with one reply.

        They are counted apart, so that streams never prevent a caller from cancelling.
        """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler, or one that refuses."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OURS):
            return handler
        streams = handler.unary_unary is None
        try:
            caller = self._callers.identify(handler_call_details.invocation_metadata)
        except SpecInferError as error:
            if streams:
                self._refused(status_of(error))
            return grpc.stream_stream_rpc_method_handler(partial(_refuse, error))
        return placed(handler, partial(self._place, caller, self._streams if streams else self._single))

    @contextmanager
    def _place(self, caller: Caller, calls: Counter[str]) -> Iterator[None]:
        """Count a call of a caller that may have so many requests."""
        max_streams = caller.max_concurrent * STREAMS_PER_REQUEST
        if max_streams and calls[caller.name] >= max_streams:
            error = ExhaustedError(f"key {caller.name}: {max_streams} calls are open")
            if calls is self._streams:
                self._refused(status_of(error))
            raise error
        calls[caller.name] += 1
        try:
            yield
        finally:
            calls[caller.name] -= 1
            if not calls[caller.name]:
                del calls[caller.name]


async def _refuse(error: SpecInferError, messages: Any, context: Context) -> None:
    await abort(context, error)
