"""Log lines: their request and trace, and rate limits.

Request and trace are set where a call or a step begins; a line about another request names it by `about`.
Repeated events are logged the first time, then every five seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
TRACE_ID: ContextVar[str] = ContextVar("trace_id", default="")


def about(request_id: str, trace_id: str = "") -> dict[str, str]:
    """Return `extra` of a log line, with its request and trace."""
    return {"request_id": request_id, "trace_id": trace_id}


@contextmanager
def in_trace(trace_id: str) -> Iterator[None]:
    """Attach a trace to the lines that are written inside."""
    token = TRACE_ID.set(trace_id)
    try:
        yield
    finally:
        TRACE_ID.reset(token)


LOG_EVERY_S = 5.0


@dataclass(slots=True)
class LogPace:
    """Lets the first line through, then one every `LOG_EVERY_S` seconds."""

    _last: float | None = None

    def due(self, now: float) -> bool:
        """Return whether a line may be written at this time."""
        if self._last is not None and now - self._last < LOG_EVERY_S:
            return False
        self._last = now
        return True
