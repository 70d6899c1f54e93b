"""A TCP proxy between two processes of the system, which can delay data and reset connections.

Data that the proxy has read is delivered even if the sender has given up, as on a slow network.
"""

import asyncio
import contextlib
from collections.abc import Callable

_PIECE = 64 * 1024


class Proxy:
    """Forwards connections from one port of loopback to another."""

    def __init__(self, name: str, port: int, target_port: int, clock: Callable[[], float]) -> None:
        self.name, self.port, self._target_port, self._clock = name, port, target_port, clock
        self._held_until = 0.0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """Address of the proxy."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Close all connections, and stop listening."""
        if self._server is not None:
            self._server.close()
        self._held_until = 0.0
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self, seconds: float) -> None:
        """Delay all data in both directions for some seconds; then deliver it."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def turn_to(self, target_port: int) -> None:
        """Forward new connections to another port; open connections stay."""
        self._target_port = target_port

    def cut(self) -> int:
        """Reset all connections, which loses data in transit; return their number."""
        count = len(self._open) // 2
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        return count

    def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        ends = [writer]
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._open.add(there)
            ends.append(there)
            await asyncio.gather(self._pump(reader, there), self._pump(there_reader, writer))
        except OSError:
            writer.transport.abort()  # as if nothing listened here
        finally:
            self._open.difference_update(ends)
            for end in ends:
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
        while (seconds := self._held_until - self._clock()) > 0:  # noqa: ASYNC110  # a time, no event
            await asyncio.sleep(seconds)
