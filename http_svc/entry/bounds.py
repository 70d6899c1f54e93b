"""Bounds of calls and connections."""

from specinfer.service.settings import KIBIBYTE, MEBIBYTE

HEADER_BYTES = 64 * KIBIBYTE
"""Largest head of a call, its first line and headers; 400 above it."""
HEADER_SECONDS = 20.0
"""Time for the head of a call; then the connection is closed."""
MAX_BODY_BYTES = 4 * MEBIBYTE
"""Largest body; 413 above it."""
BODY_SECONDS = 20.0
"""Time for a body, in addition to what its size takes at `BODY_RATE`; then the answer is 408."""
BODY_RATE = 16 * KIBIBYTE
"""Lowest rate of a body, in bytes per second."""
IDLE_SECONDS = 90
"""Time that a connection stays open between calls; proxies keep theirs for 60 to 75."""
CONNECTIONS = 8192
"""Maximum of open connections; the one without a call for longest gives way to a new one."""


def body_time_s(size: int) -> float:
    """Return the time that `size` bytes of a body may take."""
    return BODY_SECONDS + size / BODY_RATE
