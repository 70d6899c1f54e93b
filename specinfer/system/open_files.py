"""The process' limit of open files, and the connections that it allows."""

import logging
import resource
from contextlib import suppress

log = logging.getLogger(__name__)
_RESERVE = 256
"""Descriptors for files, processes, and the server's own connections."""


def raise_limit() -> None:
    """Raise the limit to its maximum; child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # a system may allow less than its maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections(wanted: int) -> int:
    """Return the possible part of the wanted connections; warn if small."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    left = limit - min(_RESERVE, limit // 2)
    if left < _RESERVE:
        log.warning("the limit of open files is %d: at most %d connections (see `ulimit -n`)", limit, left)
    return min(wanted, left)
