"""Manage a client's channels to gateways, opened on first use."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias

import grpc

from specinfer.client.errors import Failure, RequestFailedError
from specinfer.errors import InvalidInputError, SettingError, UnavailableError
from specinfer.service.channel import check_target, open_channel, split_targets
from specinfer.service.tls import ClientTls
from specinfer.v1 import generation_pb2_grpc

Metadata: TypeAlias = tuple[tuple[str, str], ...]


def call_metadata(api_key: str | None, traceparent: str = "") -> Metadata:
    """Return the metadata of calls with this key and W3C trace context.

    Raises:
        InvalidInputError: if the key or the trace context cannot be sent; the key is not shown.
    """
    metadata: Metadata = ()
    if api_key is not None:
        if not api_key or not api_key.isascii() or not api_key.isprintable():
            raise InvalidInputError("api_key", "...", "must be printable ASCII")
        metadata = (("authorization", f"Bearer {api_key}"),)
    if traceparent:
        if not re.fullmatch(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", traceparent):
            reason = "must be 2, 32, 16 and 2 lower-case hex digits, joined by '-' (W3C)"
            raise InvalidInputError("traceparent", traceparent, reason)
        metadata = (*metadata, ("traceparent", traceparent))
    return metadata


CLOSED = "the client was closed"
_UNARY_TIMEOUT_S = 5.0


def read_addresses(given: str | Sequence[str]) -> tuple[str, ...]:
    """Check addresses of gateways: a sequence, or a string with commas.

    Raises:
        SettingError: if there is no address, or an address is invalid.
    """
    if isinstance(given, str):
        return tuple(split_targets("address", given))
    if not given:
        raise SettingError("address", given, "must be one or more host:port")
    return tuple(check_target("address", address) for address in given)


_SHORTEST_AWAY_S, _LONGEST_AWAY_S = 1.0, 30.0
"""Seconds without calls after a gateway's failure, doubled by each further one."""


class Gateways:
    """Channels to gateways by index of address, called in turn.

    A gateway that has just failed is tried last, for some seconds.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        tls: ClientTls | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.addresses, self._clock = addresses, clock
        self._next = 0
        self._away: dict[int, tuple[int, float]] = {}
        """Failed gateways: failures in a row, and time of the next try."""
        self._tls = tls
        self._channels: dict[int, grpc.aio.Channel] = {}
        self.closed = False
        self._closing = asyncio.Event()

    def stub(self, index: int) -> generation_pb2_grpc.GenerationStub:
        """Return the stub of one gateway.

        Raises:
            SettingError: if a TLS file cannot be used.
            UnavailableError: after `close`.
        """
        if self.closed:
            raise UnavailableError(CLOSED)
        if index not in self._channels:
            self._channels[index] = open_channel(self.addresses[index], self._tls)
        return generation_pb2_grpc.GenerationStub(self._channels[index])  # type: ignore[no-untyped-call]

    def take_turn(self) -> int:
        """Return the gateway of a new stream, each in turn."""
        first = self.in_turn()[0]
        self._next = (first + 1) % len(self.addresses)
        return first

    def in_turn(self) -> list[int]:
        """Return all indices: the next stream's first, failed gateways last."""
        count, now = len(self.addresses), self._clock()
        order = [(self._next + turn) % count for turn in range(count)]
        return sorted(order, key=lambda index: self._away.get(index, (0, 0.0))[1] > now)

    def answered(self, index: int) -> None:
        """Note that a gateway works."""
        self._away.pop(index, None)

    def failed(self, index: int, failure: Failure) -> None:
        """Avoid a gateway for a while, unless only one call failed."""
        if failure.transient and not failure.no_room:
            failures = self._away.get(index, (0, 0.0))[0]
            seconds = min(_LONGEST_AWAY_S, _SHORTEST_AWAY_S * 2.0 ** min(failures, 32))
            self._away[index] = failures + 1, self._clock() + seconds

    async def ask(self, method: str, message: Any, metadata: Metadata) -> Any:
        """Return the reply of the first gateway that answers.

        Raises:
            RequestFailedError: if a gateway refuses with a permanent error.
            UnavailableError: if no gateway answers, or the client is closed.
        """
        last = UnavailableError("no gateway")
        for index in self.in_turn():
            call = getattr(self.stub(index), method)
            try:
                reply = await call(message, timeout=_UNARY_TIMEOUT_S, metadata=metadata)
                self.answered(index)
                return reply
            except asyncio.CancelledError as error:
                self.heed_close(error)
            except grpc.aio.AioRpcError as error:
                failure = Failure.of(error)
                self.failed(index, failure)
                if not failure.transient:
                    raise RequestFailedError(failure) from error
                last = UnavailableError(f"gateway at {self.addresses[index]}: {failure.details}")
        raise last

    def heed_close(self, error: asyncio.CancelledError) -> NoReturn:
        """Raise the error for a cancelled call.

        Raises:
            UnavailableError: if `close` cancelled the call.
            CancelledError: `error`, if the task was cancelled.
        """
        task = asyncio.current_task()
        if not self.closed or (task is not None and task.cancelling()):
            raise error
        raise UnavailableError(CLOSED) from None

    async def pause(self, seconds: float) -> None:
        """Sleep for `seconds`.

        Raises:
            UnavailableError: as soon as the client is closed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        if self.closed:
            raise UnavailableError(CLOSED)

    async def close(self) -> None:
        """Close all channels; later calls raise UnavailableError."""
        self.closed = True
        self._closing.set()
        for channel in self._channels.values():
            await channel.close()
