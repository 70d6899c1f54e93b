"""A TCP proxy that breaks connections in the middle of a message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def cutting_proxy(address: str, cuts: list[int]) -> AsyncIterator[str]:
    """Run a proxy to `address`; yield the proxy's address.

    Each entry of `cuts`, which is emptied, breaks one connection after this number of the server's bytes.
    """
    host, port = address.split(":")
    running: set[asyncio.Task[None] | None] = set()

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        left = cuts.pop(0) if cuts else None
        server, to_server = await asyncio.open_connection(host, int(port))
        up = asyncio.create_task(_pump(client, to_server, None))
        try:
            await _pump(server, to_client, left)
        finally:
            up.cancel()
            for writer in (to_client, to_server):
                writer.transport.abort()
                with suppress(ConnectionError):
                    await writer.wait_closed()
            running.discard(asyncio.current_task())

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for task in list(running):
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, running), return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: int | None) -> None:
    """Copy until the source ends, a side breaks, or `left` bytes have passed."""
    with suppress(ConnectionError):
        while data := await source.read(4096):
            sink.write(data if left is None else data[:left])
            await sink.drain()
            if left is not None and (left := left - len(data)) <= 0:
                return
