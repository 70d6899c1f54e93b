"""Refuse calls without a valid key before their message is read."""

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
"""Maximum open streams of a caller, per request allowed by `max_concurrent`.

A client that reconnects after a failure may briefly have several streams.
"""


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid key, and calls above a caller's limits.

    Without this interceptor, gRPC would wait without limit for a message of up to 16 MiB before it calls a method
    that checks the key.
    """

    def __init__(self, callers: Callers, refused: Callable[[grpc.StatusCode], None]) -> None:
        """Create the interceptor; it calls `refused` with each refused stream's status."""
        self._callers, self._refused = callers, refused
        self._streams, self._single = Counter[str](), Counter[str]()
        """Open calls by caller: streams, and calls with one reply.

        The two are counted separately, so that open streams never prevent a caller from cancelling.
        """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler, or a handler that refuses the call."""
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
        """Count the call while open; refuse it above the caller's limit."""
        max_streams = caller.max_concurrent * STREAMS_PER_REQUEST
        if max_streams and calls[caller.name] >= max_streams:
            error = ExhaustedError(f"key {caller.name}: {max_streams} calls are open, no more are allowed")
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
