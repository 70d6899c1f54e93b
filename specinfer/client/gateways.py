"""The gateways of a client, with channels opened on first use."""

import asyncio
import re
from collections.abc import Iterator, Sequence
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
        InvalidInputError: if one of them cannot be sent; the error does not show the key.
    """
    metadata: Metadata = ()
    if api_key is not None:
        if not api_key or not api_key.isascii() or not api_key.isprintable():
            raise InvalidInputError("api_key", "...", "must be printable ASCII")
        metadata = (("authorization", f"Bearer {api_key}"),)
    if traceparent:
        if not re.fullmatch(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", traceparent):
            raise InvalidInputError("traceparent", traceparent, "must be VERSION-TRACE-PARENT-FLAGS, in hex")
        metadata = (*metadata, ("traceparent", traceparent))
    return metadata


CLOSED = "the client was closed"
_UNARY_TIMEOUT_S = 5.0


def read_addresses(given: str | Sequence[str]) -> tuple[str, ...]:
    """Parse addresses of gateways: a sequence, or text with commas.

    Raises:
        SettingError: if there is none, or one to which no channel can be opened.
    """
    if isinstance(given, str):
        return tuple(split_targets("address", given))
    if not given:
        raise SettingError("address", given, "must be host:port, one or several")
    return tuple(check_target("address", address) for address in given)


class Gateways:
    """Stubs by index of their address. Requests start at `first`."""

    def __init__(self, addresses: tuple[str, ...], tls: ClientTls | None) -> None:
        self.addresses = addresses
        self.first = 0
        self._tls = tls
        self._channels: dict[int, grpc.aio.Channel] = {}
        self.closed = False
        self._closing = asyncio.Event()

    def stub(self, index: int) -> generation_pb2_grpc.GenerationStub:
        """Return the stub of one gateway.

        Raises:
            SettingError: if a file of TLS does not fit.
            UnavailableError: after `close`.
        """
        if self.closed:
            raise UnavailableError(CLOSED)
        if index not in self._channels:
            self._channels[index] = open_channel(self.addresses[index], self._tls)
        return generation_pb2_grpc.GenerationStub(self._channels[index])  # type: ignore[no-untyped-call]

    def in_turn(self) -> Iterator[int]:
        """Yield every index once, the first one first."""
        count = len(self.addresses)
        yield from ((self.first + turn) % count for turn in range(count))

    async def ask(self, method: str, message: Any, metadata: Metadata) -> Any:
        """Return the reply of the first gateway that answers.

        Raises:
            RequestFailedError: if it refuses.
            UnavailableError: if none answers.
        """
        last = UnavailableError("no gateway")
        for index in self.in_turn():
            call = getattr(self.stub(index), method)
            try:
                return await call(message, timeout=_UNARY_TIMEOUT_S, metadata=metadata)
            except asyncio.CancelledError as error:
                self.heed_close(error)
            except grpc.aio.AioRpcError as error:
                failure = Failure.of(error)
                if not failure.transient:
                    raise RequestFailedError(failure) from error
                last = UnavailableError(f"gateway at {self.addresses[index]}: {failure.details}")
        raise last

    def heed_close(self, error: asyncio.CancelledError) -> NoReturn:
        """Raise the cause of a cancelled call: `close` or the task.

        Raises:
            UnavailableError: if it was `close`.
            CancelledError: the error, if the task was cancelled.
        """
        task = asyncio.current_task()
        if not self.closed or (task is not None and task.cancelling()):
            raise error
        raise UnavailableError(CLOSED) from None

    async def pause(self, seconds: float) -> None:
        """Wait for so many seconds.

        Raises:
            UnavailableError: as soon as the client is closed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        if self.closed:
            raise UnavailableError(CLOSED)

    async def close(self) -> None:
        """Close all channels, for good."""
        self.closed = True
        self._closing.set()
        for channel in self._channels.values():
            await channel.close()
