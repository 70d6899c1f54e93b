"""One thread for a service's engine, so that health and metrics answer while the model computes."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class EngineThread:
    """Runs calls one after another, in order of arrival, on one thread of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `function` on the engine thread and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: function(*args, **kwargs)
        )

    def stop(self) -> None:
        """Waits for the running call and ends the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
