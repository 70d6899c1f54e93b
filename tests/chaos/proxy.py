"""A TCP proxy between two processes of the system, which can hold back what is sent and cut connections.

What was read before a sender gave up is still delivered, late: a message on a slow network does not know that
nobody waits for it any more.
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
        self._tasks: set[asyncio.Task[None]] = set()

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
        self._held_until = 0.0
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self, seconds: float) -> None:
        """Holds back what is sent, both ways, for some time; then all of it arrives."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def turn_to(self, target_port: int) -> None:
        """Leads new connections elsewhere; those that are open stay where they are."""
        self._target_port = target_port

    def cut(self) -> int:
        """Resets all connections; what is under way on them is lost. Returns how many there were."""
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
