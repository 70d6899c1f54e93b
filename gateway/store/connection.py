"""Connect to Redis: run scripts, convert errors, and handle failover.

Invariant: after a server answers that it is not the primary, its connections are not used again. A managed Redis
fails over under one name: the old primary becomes a replica, and only new connections reach the new primary.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.exceptions import BusyLoadingError, MasterDownError, NoScriptError, ReadOnlyError, RedisError

from gateway.store.keys import PREFIX
from specinfer.errors import SettingError, UnavailableError

log = logging.getLogger(__name__)
_TIMEOUT_S = 5.0
"""Timeout in seconds of a command; a slow disk delays Redis."""
_MAX_KEPT = 4
"""Maximum idle connections kept open for scripts."""
_MAX_CONNECTIONS = 64
"""Maximum connections of a gateway.

Further commands wait for a free connection. redis-py's default pool would refuse them, as if Redis were
unavailable.
"""


def check_url(url: str) -> None:
    """Check the form of a Redis URL, without connecting."""
    try:
        parse_url(url)
    except ValueError as error:
        shown = re.sub(r"//[^/@]*@", "//***@", url)  # hide the password
        reason = (
            f"must be redis://HOST:PORT/NUMBER, rediss:// or unix://PATH ({' '.join(str(error).split())})"
        )
        raise SettingError("redis_url", shown, reason) from error


class RedisConnection:
    """Runs commands and scripts in Redis; failures raise `UnavailableError`."""

    def __init__(self, connect: Callable[[], Redis]) -> None:
        """Create a connection; `connect` creates a Redis client."""
        self._connect = connect
        self.redis = connect()
        """The current client; a failover replaces it, so do not store it."""
        self._left: set[asyncio.Task[None]] = set()
        self._kept: list[Any] = []
        """Idle connections of `redis`, kept for scripts."""

    @classmethod
    def open(cls, url: str, **options: Any) -> "RedisConnection":
        """Return a connection to `url`, which connects on first use."""
        check_url(url)

        def connect() -> Redis:
            pool = BlockingConnectionPool.from_url(
                url,
                decode_responses=True,
                socket_timeout=_TIMEOUT_S,
                max_connections=_MAX_CONNECTIONS,
                timeout=_TIMEOUT_S,
                **options,
            )
            return Redis.from_pool(pool)

        return cls(connect)

    async def check(self) -> None:
        """Check that the server answers."""
        await self.answer(lambda redis: redis.ping())

    async def run(self, script: str, *arguments: str | int | float) -> Any:
        """Run a script of `gateway/store/scripts` in one atomic step.

        The script's first argument is the keys' prefix, followed by `arguments`.
        """
        given = (0, PREFIX, *arguments)
        return await self.answer(lambda redis: self._evaluate(redis, script, given))

    async def _evaluate(self, redis: Redis, script: str, given: Sequence[str | int | float]) -> Any:
        try:
            return await self._command(redis, "EVALSHA", _digest(script), *given)
        except NoScriptError:  # the server has not cached the script yet
            return await self._command(redis, "EVAL", source(script), *given)

    async def _command(self, redis: Redis, *words: str | int | float) -> Any:
        """Send a command by an idle connection, else by a pooled connection.

        Taking a connection from the pool takes as long as the command itself.
        """
        pool = redis.connection_pool
        kept = redis is self.redis and self._kept
        connection = kept.pop() if kept else await pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                connection.socket_timeout = None  # `asyncio.timeout` covers the whole exchange
                await pool.ensure_connection(connection)
                await connection.send_packed_command(connection.pack_command(*words), check_health=False)
                return await connection.read_response()
        finally:
            if redis is self.redis and len(self._kept) < _MAX_KEPT:
                self._kept.append(connection)
            else:
                await pool.release(connection)

    async def answer(self, ask: Callable[[Redis], Awaitable[Any]]) -> Any:
        """Return the answer to a command that `ask` sends.

        If the server is no longer the primary, it has executed nothing; the command is repeated once with a new client.
        """
        asked = self.redis
        try:
            try:
                answer = await ask(asked)
            except (RedisError, OSError) as error:
                if not is_no_primary(error):
                    raise
                _raise_suppressed_cancellation()
                self._leave(asked, error)
                answer = await ask(self.redis)
        except (RedisError, OSError) as error:
            _raise_suppressed_cancellation()
            raise UnavailableError(f"Redis does not answer: {redis_reason(error)}") from error
        _raise_suppressed_cancellation()
        return answer

    def _leave(self, asked: Redis, error: Exception) -> None:
        """Replace client `asked`, unless another command has replaced it."""
        if asked is not self.redis:
            return
        log.warning("Redis is no longer the primary, connecting again: %s", redis_reason(error))
        self.redis, self._kept = self._connect(), []
        task = asyncio.get_running_loop().create_task(_close_later(asked))
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def close(self) -> None:
        for task in self._left:
            task.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)
        await _close(self.redis)


async def _close_later(redis: Redis) -> None:
    """Close idle connections now, and busy connections after `_TIMEOUT_S`."""
    try:
        await redis.connection_pool.disconnect(inuse_connections=False)
        await asyncio.sleep(_TIMEOUT_S)
    except (RedisError, OSError) as error:
        log.info("closing a connection to the former primary failed: %s", redis_reason(error))
    finally:
        await _close(redis)


async def _close(redis: Redis) -> None:
    await redis.aclose()
    await redis.connection_pool.disconnect()  # includes connections of cancelled calls


@cache
def _digest(script: str) -> str:
    """Return a script's SHA-1, by which Redis caches it."""
    return hashlib.sha1(source(script).encode(), usedforsecurity=False).hexdigest()


@cache
def source(script: str) -> str:
    """Return a script's text, after the functions shared with other scripts."""
    text = _read(script)
    return _read("unowned") + text if "_unowned(" in text else text


def _read(script: str) -> str:
    return (resources.files("gateway.store") / "scripts" / f"{script}.lua").read_text(encoding="utf-8")


def _raise_suppressed_cancellation() -> None:
    """Raise a cancellation that the Redis client suppressed.

    The client suppresses a cancellation during an answer or an error; without this, a retrying task never ends.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_QUOTED = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""The part of a Redis client's error that quotes a command."""


def redis_reason(error: Exception) -> str:
    """Return the message of a Redis client's error without quoted commands."""
    return _QUOTED.sub("", str(error))


_NO_PRIMARY = re.compile(r"(^|[ -])(READONLY|MASTERDOWN|LOADING) ")
"""Error text of a replica or loading server, even from scripts."""


def is_no_primary(error: Exception) -> bool:
    """Return whether the server refused because it is a replica or loading.

    After a failover, the server's name may resolve to another server.
    """
    known = (ReadOnlyError, MasterDownError, BusyLoadingError)
    return isinstance(error, known) or _NO_PRIMARY.search(redis_reason(error)) is not None
