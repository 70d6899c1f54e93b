"""An event loop with virtual time, whose processes can be paused and killed.

Time passes only while nothing can run: the loop then jumps to its next timer. A process is a name in the context of
its tasks. The callbacks of a paused process wait; those of a killed process never run again, not even `finally`.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)
"""The process to which the running callback belongs; None: the world."""
START_S = 1_000_000.0
"""Time at the start of each world."""


class StuckError(AssertionError):
    """Nothing will ever happen again, but the world has not ended."""


class Process:
    """A process of the world."""

    def __init__(self, loop: "SimulatedLoop", name: str) -> None:
        self.name, self._loop = name, loop
        self.alive, self.paused = True, False
        self.held: list[asyncio.Handle] = []
        """Callbacks that wait for the end of a pause."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self._context: Context = copy_context()
        self._context.run(PROCESS.set, self)
        loop.processes.append(self)

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a task of this process."""
        return self._context.run(self._loop.create_task, work)

    def kill(self) -> None:
        """End the process as SIGKILL does: none of its code runs any more."""
        self.alive = False
        self.held.clear()

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        self.paused = True

    def resume(self) -> None:
        """Continue the process as SIGCONT does."""
        self.paused = False
        if self.alive:
            self._loop.again(self.held)
        self.held = []


def here() -> Process | None:
    """Return the process whose code calls this function."""
    return PROCESS.get()


class _Ready(deque[Any]):
    """Callbacks to run; those of paused and killed processes are held back."""

    nothing: asyncio.Handle

    def popleft(self) -> Any:
        handle = super().popleft()
        process = handle._context.get(PROCESS)
        if process is None or (process.alive and not process.paused):
            return handle
        if process.alive:
            process.held.append(handle)
        return self.nothing


class _Selector(selectors.BaseSelector):
    """A selector without files, which lets virtual time pass instead of waiting."""

    def __init__(self) -> None:
        self.now = START_S
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("all tasks wait for something that will never happen")
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Any:
        return self._keys


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop of one world."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-6
        self._ready = _Ready()
        self._ready.nothing = asyncio.Handle(lambda: None, (), self)
        self._ready.nothing.cancel()
        self.processes: list[Process] = []
        """All processes, so that the coroutines of killed ones stay where they are."""
        self.faults: list[str] = []
        """Messages of exceptions that nobody handled."""
        self.set_exception_handler(self._note)
        self.set_task_factory(_in_process)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._virtual.now

    def again(self, handles: list[asyncio.Handle]) -> None:
        """Run held callbacks, in their order."""
        self._ready.extend(handles)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, asyncio.CancelledError):
            self.faults.append(f"{context['message']}: {error!r}")


def _in_process(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context | None = None
) -> "asyncio.Task[T]":
    """Create a task; its process remembers it until its end."""
    task = asyncio.Task(work, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task
