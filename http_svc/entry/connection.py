"""Connections with a maximum number, and timeouts for heads and bodies.

uvicorn bounds the size of one head (h11 counts it) and idle connections between calls, but waits without end
for a head that has begun, and for a body after its answer.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connections:
    """Open connections, up to a maximum: new ones replace idle ones."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._open: OrderedDict[BoundedConnection, None] = OrderedDict()
        """The one that did nothing for longest first."""

    def add(self, connection: "BoundedConnection") -> None:
        """Add a new connection, or close it if all others have calls."""
        if len(self._open) >= self._max_count:
            free = next((idle for idle in self._open if idle.conn.our_state is h11.IDLE), connection)
            self._open.pop(free, None)
            free.transport.abort()
            if free is connection:
                return
        self._open[connection] = None

    def note(self, connection: "BoundedConnection") -> None:
        """Note that something came on a connection."""
        if connection in self._open:
            self._open.move_to_end(connection)

    def remove(self, connection: "BoundedConnection") -> None:
        """Forget a connection that was closed."""
        self._open.pop(connection, None)


class BoundedConnection(H11Protocol):
    """uvicorn's protocol with timeouts for slow clients."""

    open_connections: Connections
    head_s: float
    """Timeout of a head, and of a body after its answer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head from now on."""
        super().connection_made(transport)
        self.open_connections.add(self)
        self._watch(True)

    def data_received(self, data: bytes) -> None:
        """Read, and look what is waited for now."""
        super().data_received(data)
        self.open_connections.note(self)
        self._watch(self._is_waiting())

    def on_response_complete(self) -> None:
        """Start the timeout of a body after its answer."""
        super().on_response_complete()
        self._watch(self._is_waiting())

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._watch(False)
        self.open_connections.remove(self)
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Return whether a head, or an answered call's body, is incomplete."""
        begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return begun or (self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY)

    def _watch(self, waiting: bool) -> None:
        """Start the timeout if waiting, else stop it."""
        if waiting and self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.abort)
        elif not waiting and self._late is not None:
            self._late.cancel()
            self._late = None


def bounded(head_s: float, max_count: int) -> type[BoundedConnection]:
    """Return the class of connections with these bounds: uvicorn makes them itself."""
    bounds = {"head_s": head_s, "open_connections": Connections(max_count)}
    return type(BoundedConnection.__name__, (BoundedConnection,), bounds)
