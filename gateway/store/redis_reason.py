"""What Redis says is wrong, without the command, which its client quotes where a pipeline fails; and which
errors say that another server is to be asked."""

import re

from redis.exceptions import BusyLoadingError, MasterDownError, ReadOnlyError

_QUOTED = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)


def redis_reason(error: Exception) -> str:
    """The message of an error of the Redis client, for logs and clients."""
    return _QUOTED.sub("", str(error))


_NO_PRIMARY = re.compile(r"(^|[ -])(READONLY|MASTERDOWN|LOADING) ")
"""As a script quotes it that was refused half way (before Redis 7)."""


def is_no_primary(error: Exception) -> bool:
    """Whether the server is a replica, waits for its primary, or still loads: after a failover its name may
    lead to another one."""
    known = (ReadOnlyError, MasterDownError, BusyLoadingError)
    return isinstance(error, known) or _NO_PRIMARY.search(redis_reason(error)) is not None
