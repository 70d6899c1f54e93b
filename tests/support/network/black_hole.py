"""A place on the network that takes connections and never says a word, as behind a firewall that drops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class BlackHole:
    """Its address, and who came."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.callers = 0
        """Connections that it has taken."""
        self.writers: list[asyncio.StreamWriter] = []

    def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps a connection, and reads nothing of it."""
        self.callers += 1
        self.writers.append(writer)


@asynccontextmanager
async def black_hole() -> AsyncIterator[BlackHole]:
    """One of them."""
    hole = BlackHole("")
    listener = await asyncio.start_server(hole.take, "127.0.0.1", 0)
    hole.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield hole
    finally:
        listener.close()
        for writer in hole.writers:
            writer.transport.abort()
