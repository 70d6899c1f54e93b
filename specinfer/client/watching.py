"""Watch steps of requests at all gateways; any gateway may run them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import grpc

from specinfer.client.errors import CUT_SHORT, Failure, RequestFailedError
from specinfer.client.gateways import CLOSED, Gateways, Metadata
from specinfer.errors import UnavailableError
from specinfer.v1 import generation_pb2

_START_S = 2.0
"""Seconds to wait at the start for unresponsive gateways."""
Reply: TypeAlias = generation_pb2.WatchReply
_Replies: TypeAlias = "asyncio.Queue[tuple[int, Reply | Failure | None]]"
"""Pairs (gateway's index, reply or failure); None: `_START_S` are over."""


async def watch_steps(
    gateways: Gateways, metadata: Metadata, request_id: str
) -> AsyncGenerator[generation_pb2.WatchReply, None]:
    """Yield an empty reply once all gateways watch, then each step.

    With a `request_id`, the last reply reports the request's end.

    Raises:
        RequestFailedError: if the watches of all gateways have failed.
        UnavailableError: if the client is closed.
    """
    replies: _Replies = asyncio.Queue()
    message = generation_pb2.WatchRequest(request_id=request_id)
    stubs = [gateways.stub(index) for index in range(len(gateways.addresses))]
    calls = [stub.Watch(message, metadata=metadata) for stub in stubs]
    tasks = [asyncio.create_task(_read(index, call, replies)) for index, call in enumerate(calls)]
    timer = asyncio.get_running_loop().call_later(_START_S, replies.put_nowait, (-1, None))
    tellers, began = _Tellers(len(calls)), False
    try:
        while True:
            news = await replies.get()
            if gateways.closed:
                raise UnavailableError(CLOSED)
            step = tellers.note(*news)
            if not began and (tellers.ready or step is not None):
                began = True
                yield Reply()
            if step is not None:
                yield step
                if request_id and step.finish_reason:
                    return
    finally:
        timer.cancel()
        for task, call in zip(tasks, calls, strict=True):
            task.cancel()
            call.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(index: int, call: Any, replies: _Replies) -> None:
    """Queue the replies of a gateway, then its failure."""
    try:
        while isinstance(reply := await call.read(), Reply):
            replies.put_nowait((index, reply))
        replies.put_nowait((index, CUT_SHORT))
    except grpc.aio.AioRpcError as error:
        replies.put_nowait((index, Failure.of(error)))
    except asyncio.CancelledError:  # gRPC raises it if the client was closed
        replies.put_nowait((index, Failure(grpc.StatusCode.CANCELLED, CLOSED)))
        raise


class _Tellers:
    """Tracks which gateways watch, have not answered yet, or have failed."""

    def __init__(self, count: int) -> None:
        self._asked, self._telling = set(range(count)), set[int]()
        self._late = False

    @property
    def ready(self) -> bool:
        """True if a gateway watches, and others have answered or time out."""
        return bool(self._telling) and (self._late or not self._asked)

    def note(self, index: int, reply: Reply | Failure | None) -> Reply | None:
        """Process a gateway's reply or failure; return a reply with a step."""
        if reply is None:
            self._late = True
            return None
        self._asked.discard(index)
        if isinstance(reply, Failure):
            self._telling.discard(index)
            if not self._asked and not self._telling:
                raise RequestFailedError(reply)
            return None
        self._telling.add(index)
        return reply if reply.request_id else None
