"""Bounds of calls and connections."""

from specinfer.service.settings import KIBIBYTE, MEBIBYTE

HEADER_BYTES = 64 * KIBIBYTE
"""Maximum bytes of a request's line and headers; else 400."""
HEADER_SECONDS = 20.0
"""Time for the head of a call; then the connection is closed."""
MAX_BODY_BYTES = 4 * MEBIBYTE
"""Largest body; 413 above it."""
BODY_SECONDS = 20.0
"""Seconds for a body, plus its size by `BODY_RATE`; else 408."""
BODY_RATE = 16 * KIBIBYTE
"""Lowest rate of a body, in bytes per second."""
IDLE_SECONDS = 90
"""Lifetime of idle connections, longer than the 60 to 75 of proxies."""
CONNECTIONS = 8192
"""Maximum open connections. A new one replaces the longest idle one."""


def body_time_s(size: int) -> float:
    """Return the time that `size` bytes of a body may take."""
    return BODY_SECONDS + size / BODY_RATE
