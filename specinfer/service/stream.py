"""One long-lived bidirectional stream, used as request and reply: one message each way at a time.

Opens when first used and again after any failure. A round trip on an open stream costs half of a
unary call (docs/findings.md#streams).
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import grpc

from specinfer.errors import UnavailableError

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class MessageStream(Generic[Request, Reply]):
    """Sends a message and returns the next reply. Calls must not overlap."""

    def __init__(
        self, name: str, open_stream: "Callable[[], grpc.aio.StreamStreamCall[Request, Reply]]"
    ) -> None:
        self._name, self._open_stream = name, open_stream
        self._call: grpc.aio.StreamStreamCall[Request, Reply] | None = None

    async def exchange(self, request: Request, patience_s: float | None = None) -> Reply:
        """One round trip.

        Args:
            patience_s: time that it may take; None for any.

        Raises:
            UnavailableError: if the stream broke or took too long; the next call opens a new one.
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
            self.reset()  # the reply is still to come: the next exchange must not take it for its own
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
        """Drops the stream; the next exchange opens a new one."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
