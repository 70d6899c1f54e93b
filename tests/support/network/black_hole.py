"""A server that accepts connections and never answers, like a firewall that drops packets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class BlackHole:
    """A server that never answers, and a count of its connections."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.callers = 0
        """Number of accepted connections."""
        self.writers: list[asyncio.StreamWriter] = []

    def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept a connection without reading from it."""
        self.callers += 1
        self.writers.append(writer)


@asynccontextmanager
async def black_hole() -> AsyncIterator[BlackHole]:
    """Run a server that never answers."""
    hole = BlackHole("")
    listener = await asyncio.start_server(hole.take, "127.0.0.1", 0)
    hole.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield hole
    finally:
        listener.close()
        for writer in hole.writers:
            writer.transport.abort()
