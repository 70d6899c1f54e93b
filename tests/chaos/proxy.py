"""A TCP proxy between two processes of the system, which can hold back what is sent and cut connections.

What was read before a sender gave up is still delivered, late: a message on a slow network does not know that nobody
waits for it any more.
"""

import asyncio
import contextlib
from collections.abc import Callable

_PIECE = 64 * 1024


class Proxy:
    """Listens on one port of loopback and connects to another."""

    def __init__(self, name: str, port: int, target_port: int, clock: Callable[[], float]) -> None:
        self.name, self.port, self._target_port, self._clock = name, port, target_port, clock
        self._held_until = 0.0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.connections = 0
        """Made since it started."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Ends all connections and listens no more."""
        if self._server is not None:
            self._server.close()
        self.cut()

    def hold(self, seconds: float) -> None:
        """Holds back what is sent, both ways, for some time; then all of it arrives."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def cut(self) -> int:
        """Resets all connections; what is under way on them is lost. Returns how many there were."""
        count = len(self._open) // 2
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        return count

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()  # as if nothing listened here
            self._open.discard(writer)
            return
        self._open.add(there[1])
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        for end in (writer, there[1]):
            self._open.discard(end)
            end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # one end was cut: the other learns it from the end of its data
            while piece := await reader.read(_PIECE):
                await self._wait_while_held()
                writer.write(piece)
                await writer.drain()
            await self._wait_while_held()
            writer.write_eof()
            return
        writer.transport.abort()

    async def _wait_while_held(self) -> None:
        while (seconds := self._held_until - self._clock()) > 0:
            await asyncio.sleep(seconds)
