"""Turns of callers at work that is dear and done before a request is recorded: tokenizing, checking constraints.

Invariant: a caller waits for at most one piece of work of each other caller, beside its own and what runs. Where
there are several places, no caller with a key holds all of them.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.api.callers import Caller
from specinfer.errors import ExhaustedError


class FairPlaces:
    """Places for work at once, given to callers in turn."""

    def __init__(self, places: int) -> None:
        """Create places for so much work at once."""
        self._free, self._most = places, max(1, places - 1)
        self._held = Counter[str]()
        """Places by caller."""
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
            self._give_back(caller.name)

    async def _wait(self, caller: Caller) -> None:
        if self._free and self._may_have(caller.name) and not self._waits(caller.name):
            self._give(caller.name)
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
                self._give_back(caller.name)  # the place was given in the same moment
            raise

    def _may_have(self, name: str) -> bool:
        """Return whether a caller may have one more of the places; without keys everybody is one caller."""
        return not name or self._held[name] < self._most

    def _waits(self, name: str) -> bool:
        return bool(self._waiting.get(name))

    def _give(self, name: str) -> None:
        self._free -= 1
        self._held[name] += 1

    def _give_back(self, name: str) -> None:
        self._free += 1
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
        self._next()

    def _next(self) -> None:
        """Give free places to the callers that wait, in turn."""
        for name in list(self._waiting):
            mine = self._waiting[name]
            while mine and mine[0].done():  # its caller leaves at this moment
                mine.popleft()
            if not mine:
                del self._waiting[name]
            elif self._free and self._may_have(name):
                self._give(name)
                mine.popleft().set_result(None)
                self._waiting.move_to_end(name)
                if not mine:
                    del self._waiting[name]
