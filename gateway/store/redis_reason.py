"""Reasons of Redis errors without the command, which its client quotes where a pipeline fails.

Also recognises the errors after which another server is to be called.
"""

import re

from redis.exceptions import BusyLoadingError, MasterDownError, ReadOnlyError

_QUOTED = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)


def redis_reason(error: Exception) -> str:
    """Return the message of an error of the Redis client, for logs and clients."""
    return _QUOTED.sub("", str(error))


_NO_PRIMARY = re.compile(r"(^|[ -])(READONLY|MASTERDOWN|LOADING) ")
"""Error as a script quotes it that was refused half way (before Redis 7)."""


def is_no_primary(error: Exception) -> bool:
    """Return whether the server is a replica, waits for its primary, or still loads.

    After a failover its name may lead to another one.
    """
    known = (ReadOnlyError, MasterDownError, BusyLoadingError)
    return isinstance(error, known) or _NO_PRIMARY.search(redis_reason(error)) is not None
