"""Limits of calls and connections."""

from specinfer.service.settings import KIBIBYTE, MEBIBYTE

HEADER_BYTES = 64 * KIBIBYTE
"""Maximum bytes of request line and headers; more are refused with 400."""
HEADER_SECONDS = 20.0
"""Timeout of request line and headers; then the connection is closed."""
MAX_BODY_BYTES = 4 * MEBIBYTE
"""Maximum bytes of a body; more are refused with 413."""
BODY_SECONDS = 20.0
"""Timeout of a body, plus its size divided by `BODY_RATE`; then 408."""
BODY_RATE = 16 * KIBIBYTE
"""Minimum rate of a body, in bytes per second."""
IDLE_SECONDS = 90
"""Timeout of idle connections, longer than proxies' 60 to 75 s."""
CONNECTIONS = 8192
"""Maximum open connections; a new one replaces the one idle for longest."""


def body_time_s(size: int) -> float:
    """Return the timeout of a body's first `size` bytes, in seconds."""
    return BODY_SECONDS + size / BODY_RATE
