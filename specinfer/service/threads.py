"""Run an engine or an event loop on its own thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from specinfer.errors import UnavailableError

P = ParamSpec("P")
R = TypeVar("R")


class EngineThread:
    """Runs calls on one thread, in order of arrival."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._waiting: set[object] = set()
        """One object per call whose function has not begun."""

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function` on the engine thread and return its result."""
        place = object()

        def begin() -> R:
            self._waiting.discard(place)
            return function(*args, **kwargs)

        self._waiting.add(place)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, begin)
        finally:
            self._waiting.discard(place)

    def stop(self) -> None:
        """Cancel waiting calls, wait for the running call, and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)


Result = TypeVar("Result")


class LoopThread:
    """Event loop in a thread; other threads call coroutines on it."""

    def __init__(self, name: str, stopped: str = "the event loop has ended") -> None:
        """Start the loop; `stopped` is the message of errors after `stop`."""
        self._message = stopped
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self.stopped = False

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a coroutine and return its result.

        An exception while waiting, for example by Ctrl-C, cancels the coroutine.
        """
        with self._lock:
            if self.stopped:
                work.close()
                raise UnavailableError(self._message)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError as error:
            if self.stopped:
                raise UnavailableError(self._message) from error
            raise
        except BaseException:
            future.cancel()  # no effect if it has ended
            raise

    def stop(self) -> None:
        """Cancel all coroutines, and end the loop and the thread."""
        with self._lock:
            if self.stopped:
                return
            self.stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
