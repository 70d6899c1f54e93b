"""The life of a server's process: it serves until SIGTERM or SIGINT."""

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def start_and_wait_for_signal(start: Callable[[], Awaitable[object]]) -> None:
    """Starts a server and returns when it is to drain: on the first SIGTERM or SIGINT."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await start()
    gc.freeze()  # what was loaded so far stays: looking at it again and again would only take time
    await stopped.wait()
    log.info("draining")
