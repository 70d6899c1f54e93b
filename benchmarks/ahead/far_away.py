"""A TCP proxy that delays what passes: half of a round trip each way.

    python -m benchmarks.ahead.far_away PORT TARGET_PORT ROUND_TRIP_MS_FILE

The file is read for every piece.
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

_PIECE = 1 << 16


def _one_way_s(delay: Path) -> float:
    return float(delay.read_text()) / 2000


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: Path) -> None:
    """Copy until the source ends; pieces keep their order, and do not wait for each other."""
    pieces = asyncio.Queue[tuple[float, bytes]]()

    async def deliver() -> None:
        while True:
            due, piece = await pieces.get()
            if (seconds := due - time.perf_counter()) > 0:
                await asyncio.sleep(seconds)
            writer.write(piece)

    delivering = asyncio.create_task(deliver())
    try:
        while piece := await reader.read(_PIECE):
            pieces.put_nowait((time.perf_counter() + _one_way_s(delay), piece))
    finally:
        delivering.cancel()
        writer.close()


async def _serve(port: int, target: int, delay: Path) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", target)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_pump(reader, there, delay), _pump(there_reader, writer, delay))

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
