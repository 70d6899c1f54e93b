"""Queue expensive work fairly: tokenizing and checking of constraints.

Invariant: before a caller's next job, at most one waiting job of each other caller starts. If there are several
places (concurrent jobs), one caller with a key never uses all of them.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from gateway.api.callers import Caller
from specinfer.errors import ExhaustedError
from specinfer.system.threads import background_threads

T = TypeVar("T")


class FairPlaces:
    """Semaphore of `places` jobs that serves callers round-robin."""

    def __init__(self, places: int) -> None:
        self._free, self._max_per_caller = places, max(1, places - 1)
        self._used = Counter[str]()
        """Number of places in use by caller."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting jobs by caller, the next caller first."""

    @asynccontextmanager
    async def take(self, caller: Caller) -> AsyncIterator[None]:
        """Wait for a place; release the place when the context ends.

        Raises:
            ExhaustedError: if `max_concurrent` jobs of the caller are waiting.
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
        max_waiting = caller.max_concurrent
        turns = self._waiting.setdefault(caller.name, deque())
        if max_waiting and len(turns) >= max_waiting:
            raise ExhaustedError(f"key {caller.name}: {max_waiting} requests wait for tokenizing or checks")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in turns:
                turns.remove(turn)
            elif not turn.cancelled():
                self._give_back(caller.name)  # the place was given while this task was cancelled
            raise

    def _may_have(self, name: str) -> bool:
        """Return whether a caller may use another place.

        A key may use all places but one. Without keys, all clients are one caller, which may use all places.
        """
        return not name or self._used[name] < self._max_per_caller

    def _waits(self, name: str) -> bool:
        return bool(self._waiting.get(name))

    def _give(self, name: str) -> None:
        self._free -= 1
        self._used[name] += 1

    def _give_back(self, name: str) -> None:
        self._free += 1
        self._used[name] -= 1
        if not self._used[name]:
            del self._used[name]
        self._next()

    def _next(self) -> None:
        """Start waiting jobs in free places, round-robin by caller."""
        for name in list(self._waiting):
            turns = self._waiting[name]
            while turns and turns[0].done():  # cancelled, and not removed yet
                turns.popleft()
            if not turns:
                del self._waiting[name]
            elif self._free and self._may_have(name):
                self._give(name)
                turns.popleft().set_result(None)
                self._waiting.move_to_end(name)
                if not turns:
                    del self._waiting[name]


class FairThreads:
    """Thread pool that serves callers round-robin."""

    def __init__(self, threads: int, name: str) -> None:
        # own threads, not the event loop's: a job of a cancelled call occupies its thread until it is done
        self._threads, self._places = background_threads(threads, name), FairPlaces(threads)

    async def run(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run `work` in a thread; return its result.

        Raises:
            ExhaustedError: as in `FairPlaces.take`.
        """
        async with self._places.take(caller):
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.gather(running, return_exceptions=True)  # until then the place is in use
                raise
