"""Turns of callers at work that is dear and done before a request is recorded: tokenizing, checking constraints.

Invariant: a caller waits for at most one piece of work of each other caller, beside its own and what runs.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.api.callers import Caller
from specinfer.errors import ExhaustedError


class FairPlaces:
    """Places for work at once, given to callers in turn."""

    def __init__(self, places: int) -> None:
        """Create places for so much work at once."""
        self._free = places
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Work that waits, by caller; the caller whose turn is next first."""

    @asynccontextmanager
    async def take(self, caller: Caller) -> AsyncIterator[None]:
        """Wait for a place and hold it.

        Raises:
            ExhaustedError: if as much of its work waits as it may have requests at once.
        """
        await self._wait(caller)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, caller: Caller) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        most = caller.max_concurrent
        mine = self._waiting.setdefault(caller.name, deque())
        if most and len(mine) >= most:
            raise ExhaustedError(f"key {caller.name}: {most} requests wait to be read")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in mine:
                mine.remove(turn)
            elif not turn.cancelled():
                self._next()  # the place was given in the same moment
            raise

    def _next(self) -> None:
        """Give a place that became free to the next caller."""
        while self._waiting:
            name, mine = self._waiting.popitem(last=False)
            while mine:
                turn = mine.popleft()
                if turn.done():  # its caller leaves at this moment
                    continue
                turn.set_result(None)
                if mine:
                    self._waiting[name] = mine
                return
        self._free += 1
