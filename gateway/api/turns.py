"""Queue expensive work fairly: tokenizing and checking of constraints.

Invariant: before a caller's next job, at most one waiting job of each other caller starts. If there are several
slots (concurrent jobs), one caller with a key never uses all of them.
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


class FairSemaphore:
    """Semaphore of `slots` jobs that serves callers round-robin."""

    def __init__(self, slots: int) -> None:
        self._free, self._max_per_caller = slots, max(1, slots - 1)
        self._used = Counter[str]()
        """Number of slots in use by caller."""
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting jobs by caller, the next caller first."""

    @asynccontextmanager
    async def take(self, caller: Caller) -> AsyncIterator[None]:
        """Wait for a slot; release the slot when the context ends."""
        await self._wait(caller)
        try:
            yield
        finally:
            self._release(caller.name)

    async def _wait(self, caller: Caller) -> None:
        if self._free and self._may_have(caller.name) and not self._waits(caller.name):
            self._take(caller.name)
            return
        max_waiting = caller.max_concurrent
        waiting = self._waiting.setdefault(caller.name, deque())
        if max_waiting and len(waiting) >= max_waiting:
            raise ExhaustedError(f"key {caller.name}: {max_waiting} requests wait for tokenizing or checks")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in waiting:
                waiting.remove(future)
            elif not future.cancelled():
                self._release(caller.name)  # the slot was given while this task was cancelled
            raise

    def _may_have(self, name: str) -> bool:
        """Return whether a caller may use another slot.

        A key may use all slots but one. Without keys, all clients are one caller, which may use all slots.
        """
        return not name or self._used[name] < self._max_per_caller

    def _waits(self, name: str) -> bool:
        return bool(self._waiting.get(name))

    def _take(self, name: str) -> None:
        self._free -= 1
        self._used[name] += 1

    def _release(self, name: str) -> None:
        self._free += 1
        self._used[name] -= 1
        if not self._used[name]:
            del self._used[name]
        self._next()

    def _next(self) -> None:
        """Start waiting jobs in free slots, round-robin by caller."""
        for name in list(self._waiting):
            waiting = self._waiting[name]
            while waiting and waiting[0].done():  # cancelled, and not removed yet
                waiting.popleft()
            if not waiting:
                del self._waiting[name]
            elif self._free and self._may_have(name):
                self._take(name)
                waiting.popleft().set_result(None)
                self._waiting.move_to_end(name)
                if not waiting:
                    del self._waiting[name]


class FairThreads:
    """Thread pool that serves callers round-robin."""

    def __init__(self, threads: int, name: str) -> None:
        # own threads, not the event loop's: a job of a cancelled call occupies its thread until it is done
        self._threads, self._slots = background_threads(threads, name), FairSemaphore(threads)

    async def run(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run `work` in a thread; return its result."""
        async with self._slots.take(caller):
            running = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.gather(running, return_exceptions=True)  # until then the slot is in use
                raise
