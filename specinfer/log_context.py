"""Which request and which trace the code that runs is about, for log lines in JSON.

Set where a call or a step begins; a line about another request than that says so by `about`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
TRACE_ID: ContextVar[str] = ContextVar("trace_id", default="")


def about(request_id: str, trace_id: str = "") -> dict[str, str]:
    """What a log line is about, as its `extra`."""
    return {"request_id": request_id, "trace_id": trace_id}


@contextmanager
def in_trace(trace_id: str) -> Iterator[None]:
    """Lines that are written inside belong to a trace."""
    token = TRACE_ID.set(trace_id)
    try:
        yield
    finally:
        TRACE_ID.reset(token)
