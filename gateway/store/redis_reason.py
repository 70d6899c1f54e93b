"""What Redis says is wrong, without the command, which its client quotes where a pipeline fails."""

import re

_QUOTED = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)


def redis_reason(error: Exception) -> str:
    """The message of an error of the Redis client, for logs and clients."""
    return _QUOTED.sub("", str(error))
