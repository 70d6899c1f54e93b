"""Limits of calls and connections."""

from specinfer.service.settings import KIBIBYTE, MEBIBYTE

HEADER_BYTES = 64 * KIBIBYTE
"""Maximum bytes of request line and headers; status 400 above."""
HEADER_SECONDS = 20.0
"""Seconds for request line and headers; then the connection is closed."""
MAX_BODY_BYTES = 4 * MEBIBYTE
"""Maximum bytes of a body; a longer body gets status 413."""
BODY_SECONDS = 20.0
"""Timeout in seconds of an empty body; status 408 follows."""
BODY_RATE = 16 * KIBIBYTE
"""Bytes of a body that extend its timeout by a second."""
IDLE_SECONDS = 90
"""Timeout in seconds of idle connections, longer than proxies' 60 to 75."""
CONNECTIONS = 8192
"""Maximum open connections; a new connection replaces the longest idle one."""


def body_time_s(size: int) -> float:
    """Return the seconds within which `size` bytes of a body must arrive."""
    return BODY_SECONDS + size / BODY_RATE
