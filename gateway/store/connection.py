"""The connection to Redis: scripts by name, errors as ours, what loading and reconnecting need."""

import asyncio
import re
from functools import cache
from importlib import resources
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from gateway.store.keys import PREFIX
from gateway.store.redis_reason import redis_reason
from specinfer.errors import SettingError, UnavailableError

_TIMEOUT_S = 5.0
"""Time that an answer may take: a Redis that writes to a slow disk pauses for a second or two."""
_MOST_CONNECTIONS = 64
"""Of a gateway. A thousand requests that come at once wait for one; redis-py's usual pool refuses the 101st,
which looks as if Redis were away, to everybody."""


class RedisConnection:
    """Runs commands and scripts; every failure to get an answer is an `UnavailableError`."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._scripts: dict[str, Any] = {}

    @classmethod
    def open(cls, url: str, **options: Any) -> "RedisConnection":
        """A connection to the server at `url`; connects on first use.

        Raises:
            SettingError: if it is no URL of a Redis.
        """
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                decode_responses=True,
                socket_timeout=_TIMEOUT_S,
                max_connections=_MOST_CONNECTIONS,
                timeout=_TIMEOUT_S,
                **options,
            )
        except ValueError as error:
            shown = re.sub(r"//[^/@]*@", "//***@", url)  # without the password
            raise SettingError("redis_url", shown, " ".join(str(error).split())) from error
        return cls(Redis.from_pool(pool))

    async def check(self) -> None:
        """Asks the server whether it is there.

        Raises:
            UnavailableError: if it does not answer.
        """
        await self.answer(self.redis.ping())

    async def run(self, script: str, *arguments: str | int | float) -> Any:
        """Runs a script of `gateway/store/scripts` in one atomic step; the keys' prefix is its first
        argument.

        Raises:
            UnavailableError: if Redis does not answer.
        """
        if script not in self._scripts:
            self._scripts[script] = self.redis.register_script(source(script))
        return await self.answer(self._scripts[script](args=[PREFIX, *arguments]))

    async def answer(self, call: Any) -> Any:
        """The answer to a command.

        Raises:
            UnavailableError: if Redis does not answer.
        """
        try:
            found = await call
        except (RedisError, OSError) as error:
            _heed_cancellation()
            raise UnavailableError(f"Redis does not answer: {redis_reason(error)}") from error
        _heed_cancellation()
        return found

    async def close(self) -> None:
        """Closes the connections."""
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()  # those of calls that were cancelled, too


@cache
def source(script: str) -> str:
    """The text of a script."""
    return (resources.files("gateway.store") / "scripts" / f"{script}.lua").read_text(encoding="utf-8")


def _heed_cancellation() -> None:
    """The Redis client swallows a cancellation that comes with an answer or an error; the task, which tries
    again and again, would never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
