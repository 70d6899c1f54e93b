"""Limit the number of connections, and the time of slow clients.

uvicorn limits the size of a head (request line and headers) and the idle time between calls. It has no timeout for
an incomplete head, nor for the rest of a body whose call was answered already.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Connections:
    """Open connections up to a maximum; new ones replace idle ones."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._open: OrderedDict[BoundedConnection, None] = OrderedDict()
        """Connections, by the time of their latest data."""

    def add(self, connection: "BoundedConnection") -> None:
        """Add a connection; at the maximum, close an idle connection or this."""
        if len(self._open) >= self._max_count:
            free = next((idle for idle in self._open if idle.conn.our_state is h11.IDLE), connection)
            self._open.pop(free, None)
            free.transport.abort()
            if free is connection:
                return
        self._open[connection] = None

    def note(self, connection: "BoundedConnection") -> None:
        """Record that a connection has received data."""
        if connection in self._open:
            self._open.move_to_end(connection)

    def remove(self, connection: "BoundedConnection") -> None:
        self._open.pop(connection, None)


class BoundedConnection(H11Protocol):
    """uvicorn's protocol with timeouts for slow clients."""

    open_connections: Connections
    head_s: float
    """Timeout in seconds of a head, and of an answered call's body."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first head."""
        super().connection_made(transport)
        self.open_connections.add(self)
        self._watch(True)

    def data_received(self, data: bytes) -> None:
        """Read data, and start or stop the timeout."""
        super().data_received(data)
        self.open_connections.note(self)
        self._watch(self._is_waiting())

    def on_response_complete(self) -> None:
        """Start the timeout of an incomplete body."""
        super().on_response_complete()
        self._watch(self._is_waiting())

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._watch(False)
        self.open_connections.remove(self)
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Return whether an incomplete head, or an answered call's body, is awaited."""
        begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return begun or (self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY)

    def _watch(self, waiting: bool) -> None:
        if waiting and self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.abort)
        elif not waiting and self._late is not None:
            self._late.cancel()
            self._late = None


def bounded(head_s: float, max_count: int) -> type[BoundedConnection]:
    """Return the connection class with these limits, which uvicorn instantiates."""
    bounds = {"head_s": head_s, "open_connections": Connections(max_count)}
    return type(BoundedConnection.__name__, (BoundedConnection,), bounds)
