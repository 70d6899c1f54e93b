"""A connection that has bounds: on the size of headers, and on the time that they and a rest of a body take.

uvicorn bounds the size of one head (h11 counts it) and idle connections between calls, but waits without end
for a head that has begun, and for a body that nobody reads any more.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedConnection(H11Protocol):
    """uvicorn's protocol, which closes connections whose client keeps it waiting."""

    head_s: float
    """Seconds for the head of a call, and for the rest of a body whose call was answered."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a head from now on."""
        super().connection_made(transport)
        self._watch(True)

    def data_received(self, data: bytes) -> None:
        """Read, and look what is waited for now."""
        super().data_received(data)
        self._watch(self._is_waiting())

    def on_response_complete(self) -> None:
        """Look what is waited for behind an answer."""
        super().on_response_complete()
        self._watch(self._is_waiting())

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._watch(False)
        super().connection_lost(exc)

    def _is_waiting(self) -> bool:
        """Return whether a part of a head has come, or a call is answered and its body has not ended."""
        begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        return begun or (self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY)

    def _watch(self, waiting: bool) -> None:
        """Close the connection in a while; or, if nothing is waited for, do not."""
        if waiting and self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.abort)
        elif not waiting and self._late is not None:
            self._late.cancel()
            self._late = None


def bounded(head_s: float) -> type[BoundedConnection]:
    """Return the class of connections with this bound: uvicorn makes them itself."""
    return type(BoundedConnection.__name__, (BoundedConnection,), {"head_s": head_s})
