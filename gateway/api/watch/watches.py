"""Queue finished steps for the `Watch` calls ("watches") at a gateway.

A step is sent only to watches of its request or of all its caller's requests, and only once its tokens are
stored. If steps finish faster than they are sent, the oldest unsent steps are dropped and counted.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gateway.api.callers import Caller
from specinfer.errors import ExhaustedError, InvalidInputError, UnavailableError
from specinfer.planning.feedback import FinishedStep
from specinfer.scheduling.entries import Progress

PER_SECOND = 200
"""Maximum replies per second to all watches together.

A reply with a tree of 30 nodes takes 0.5 ms, so this is a tenth of the event loop's time.
"""
AT_ONCE = 20
"""Maximum replies in a burst after a pause."""


class Pace:
    """Token bucket of `PER_SECOND` replies with bursts of `AT_ONCE`."""

    def __init__(self) -> None:
        self._next = 0.0

    def turn(self, now: float) -> float:
        """Reserve the next reply; return the seconds to wait before sending."""
        self._next = max(self._next, now - AT_ONCE / PER_SECOND) + 1 / PER_SECOND
        return max(0.0, self._next - now)


MAX_WATCHES = 64
"""Maximum open watches of a gateway; one API key may open half."""
MAX_UNREAD = 64
"""Maximum unsent events of a watch."""


class Seen(NamedTuple):
    """A request's event: its tokens of a step, or its finish."""

    item: Progress
    step: FinishedStep | None
    """The finished step; None if the request ended between steps."""
    names: Sequence[str]
    """`names[i]` is the name of speculator i."""


class Watch:
    """A `Watch` call and its unsent events."""

    def __init__(self, request_id: str) -> None:
        """Create a watch; an empty `request_id` means all requests of the caller."""
        self.request_id = request_id
        self._unread: deque[Seen] = deque()
        self._dropped = 0
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, seen: Seen) -> None:
        """Add an event.

        If `MAX_UNREAD` events wait, the oldest step is dropped, or the oldest finish if no step waits.
        """
        if len(self._unread) >= MAX_UNREAD:
            steps = (place for place, old in enumerate(self._unread) if not old.item.final)
            del self._unread[next(steps, 0)]
            self._dropped += 1
        self._unread.append(seen)
        self._changed.set()

    def close(self) -> None:
        """End the call after the remaining events."""
        self._closed = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait for an event."""
        while not self._unread:
            if self._closed:
                raise UnavailableError("this gateway is shutting down; watch at another gateway")
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> tuple[Seen, int]:
        """Return the next event, and how many events before it were dropped."""
        dropped, self._dropped = self._dropped, 0
        return self._unread.popleft(), dropped


class Watches:
    """Open watches of one gateway; `bool` is false without any."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[Watch]] = {}
        """Watches by caller and request id; an empty id means all requests."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @contextmanager
    def open(self, caller: Caller, request_id: str) -> Iterator[Watch]:
        """Open a watch of one request, or of all the caller's requests."""
        if not request_id and not caller.name:
            raise InvalidInputError("request_id", request_id, "required if the gateway has no API keys")
        self._check_room(caller)
        watch, key = Watch(request_id), (caller.name, request_id)
        self._open.setdefault(key, []).append(watch)
        try:
            yield watch
        finally:
            self._open[key].remove(watch)
            if not self._open[key]:
                del self._open[key]

    def publish(self, step: FinishedStep | None, progress: Sequence[Progress], names: Sequence[str]) -> None:
        """Add an event to the request's watches for each item of `progress`."""
        for item in progress:
            caller = item.state.request.caller
            for key in ((caller, item.request_id), (caller, "")):
                for watch in self._open.get(key, ()):
                    watch.put(Seen(item, step, names))

    def close(self) -> None:
        for watches in self._open.values():
            for watch in watches:
                watch.close()

    def _check_room(self, caller: Caller) -> None:
        total = len(self)
        open_count = sum(len(watches) for (name, _), watches in self._open.items() if name == caller.name)
        if total >= MAX_WATCHES or (caller.name and open_count >= MAX_WATCHES // 2):
            raise ExhaustedError(
                f"{total} watches are open, {open_count} of this key: at most {MAX_WATCHES} are allowed, and "
                f"{MAX_WATCHES // 2} per key; end one, or retry later"
            )
