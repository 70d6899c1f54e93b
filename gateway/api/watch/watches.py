"""Watches of requests, and the events that each has not received yet.

A step is sent only to watches of its request or of all its caller's requests, and only once its tokens are
stored. Where steps come faster than they are sent, the oldest are dropped and counted.
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
"""Maximum replies per second of all watches.

A reply about a tree of 30 nodes takes 0.5 ms, so they use a tenth of the event loop's time.
"""
AT_ONCE = 20
"""Replies that may follow a pause at once."""


class Pace:
    """Gives out turns, one after another."""

    def __init__(self) -> None:
        self._next = 0.0

    def turn(self, now: float) -> float:
        """Take a turn; return how many seconds from now it is."""
        self._next = max(self._next, now - AT_ONCE / PER_SECOND) + 1 / PER_SECOND
        return max(0.0, self._next - now)


MAX_WATCHES = 64
"""Maximum watches of a gateway. An API key may have half."""
MAX_UNREAD = 64
"""Steps that may wait for one watch."""


class Seen(NamedTuple):
    """An event of a request."""

    item: Progress
    step: FinishedStep | None
    """The finished step; None: the request ended between steps."""
    names: Sequence[str]
    """Names of the speculators, by number."""


class Watch:
    """Events that one call has not received yet."""

    def __init__(self, request_id: str) -> None:
        """Create a watch; an empty `request_id` means all requests of the caller."""
        self.request_id = request_id
        self._unread: deque[Seen] = deque()
        self._dropped = 0
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, seen: Seen) -> None:
        """Add an event.

        Where too much waits the oldest step is dropped, but not the end of a request as long as there is
        anything else.
        """
        if len(self._unread) >= MAX_UNREAD:
            steps = (place for place, old in enumerate(self._unread) if not old.item.final)
            del self._unread[next(steps, 0)]
            self._dropped += 1
        self._unread.append(seen)
        self._changed.set()

    def close(self) -> None:
        """End the call once the remaining events are sent."""
        self._closed = True
        self._changed.set()

    async def wait(self) -> None:
        """Wait until there is something to take.

        Raises:
            UnavailableError: after `close`, if all was sent.
        """
        while not self._unread:
            if self._closed:
                raise UnavailableError("this gateway ends; watch at another one")
            self._changed.clear()
            await self._changed.wait()

    def take(self) -> tuple[Seen, int]:
        """Return the next event, and the number of steps dropped before."""
        dropped, self._dropped = self._dropped, 0
        return self._unread.popleft(), dropped


class Watches:
    """Watches of one gateway: false while there are none."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], list[Watch]] = {}
        """Watches by caller and request id; an empty id means all requests."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @contextmanager
    def open(self, caller: Caller, request_id: str) -> Iterator[Watch]:
        """Watch one request, or all of a caller, until the context ends.

        Raises:
            InvalidInputError: for all requests if there are no keys: then only the secret id protects a
                request.
            ExhaustedError: if there are too many watches.
        """
        if not request_id and not caller.name:
            raise InvalidInputError("request_id", request_id, "needed where there are no API keys")
        self._check_room(caller)
        watch, key = Watch(request_id), (caller.name, request_id)
        self._open.setdefault(key, []).append(watch)
        try:
            yield watch
        finally:
            self._open[key].remove(watch)
            if not self._open[key]:
                del self._open[key]

    def tell(self, step: FinishedStep | None, progress: Sequence[Progress], names: Sequence[str]) -> None:
        """Send a stored step to the watches of its requests."""
        for item in progress:
            caller = item.state.request.caller
            for key in ((caller, item.request_id), (caller, "")):
                for watch in self._open.get(key, ()):
                    watch.put(Seen(item, step, names))

    def close(self) -> None:
        """End all of them soon."""
        for watches in self._open.values():
            for watch in watches:
                watch.close()

    def _check_room(self, caller: Caller) -> None:
        total = len(self)
        open_count = sum(len(watches) for (name, _), watches in self._open.items() if name == caller.name)
        if total >= MAX_WATCHES or (caller.name and open_count >= MAX_WATCHES // 2):
            raise ExhaustedError(
                f"{total} calls watch this gateway, {open_count} of them with this key: at most {MAX_WATCHES} may, and "
                f"{MAX_WATCHES // 2} of a key; end one, or try again later"
            )
