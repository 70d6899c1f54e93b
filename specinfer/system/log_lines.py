"""Attach request and trace ids to log lines, and limit their rate.

A call or a step sets `REQUEST_ID` and `TRACE_ID`; a line about another request passes `extra=about(...)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
TRACE_ID: ContextVar[str] = ContextVar("trace_id", default="")


def about(request_id: str, trace_id: str = "") -> dict[str, str]:
    """Return the `extra` argument of a log call about a request."""
    return {"request_id": request_id, "trace_id": trace_id}


def counts_of(prompt: int, new: int, first_s: float, steps: int) -> str:
    """Return a request's numbers for a log line.

    Args:
        prompt: tokens of the prompt.
        new: generated tokens.
        first_s: seconds to the first token.
        steps: steps that generated tokens.
    """
    per_step = new / steps if steps else 0.0
    return f"{prompt}+{new} tokens, first after {first_s:.3f} s, {per_step:.2f} a step"


@contextmanager
def in_trace(trace_id: str) -> Iterator[None]:
    """Attach a trace id to log lines written in this context."""
    token = TRACE_ID.set(trace_id)
    try:
        yield
    finally:
        TRACE_ID.reset(token)


LOG_EVERY_S = 5.0


@dataclass(slots=True)
class LogPace:
    """Limits repeated log lines to one every `LOG_EVERY_S` seconds."""

    _last: float | None = None

    def due(self, now: float) -> bool:
        """Return whether to log at `now` (seconds); if so, record the time."""
        if self._last is not None and now - self._last < LOG_EVERY_S:
            return False
        self._last = now
        return True
