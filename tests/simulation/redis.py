"""Redis in a simulated world: the real scripts, run by fakeredis with virtual time."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import fakeredis
import fakeredis._helpers
import fakeredis._socket._base
import fakeredis.commands_mixins.server_mixin
from redis.asyncio import Redis

from gateway.store.connection import RedisConnection, source
from gateway.store.keys import request_key, tokens_key
from gateway.store.records import decode_tokens
from specinfer.errors import UnavailableError
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network


class _VirtualTime:
    """Module `time` of fakeredis."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = lambda: 0.0

    def time(self) -> float:
        return self.now()


_TIME = _VirtualTime()
for _module in (fakeredis._helpers, fakeredis._socket._base, fakeredis.commands_mixins.server_mixin):
    _module.time = _TIME  # type: ignore[attr-defined]


class SimulatedRedis:
    """The Redis of a world, and its faults."""

    def __init__(self, loop: SimulatedLoop, network: Network, draw: Random) -> None:
        self.process, self._network, self._draw, self._loop = Process(loop, "redis"), network, draw, loop
        self.server = fakeredis.FakeServer()
        _TIME.now = loop.time
        self.away_until = 0.0
        self.slow_until = self.sluggish_until = 0.0
        self.lose_replies = 0
        """Number of next commands that are executed and whose reply is lost."""
        self._client = fakeredis.FakeAsyncRedis(server=self.server, decode_responses=True)
        self._kept: Any = None

    async def execute(self, ask: Callable[[Redis], Awaitable[Any]]) -> Any:
        """Carry a command to Redis and its answer back.

        Raises:
            UnavailableError: if Redis does not answer; the command may be executed.
        """
        answer = asyncio.get_running_loop().create_future()
        lost = self.lose_replies > 0
        self.lose_replies -= lost

        async def serve() -> None:
            await asyncio.sleep(self._latency())
            if self._loop.time() < self.away_until and not lost:
                return
            try:
                result = await ask(self._client)
            except Exception as error:  # noqa: BLE001  # passed to the caller
                if not answer.done():
                    answer.set_exception(error)
                return
            await asyncio.sleep(self._latency())
            if not answer.done() and not lost:
                answer.set_result(result)

        self.process.start(serve())
        try:
            async with asyncio.timeout(5.0):
                return await answer
        except TimeoutError as error:
            raise UnavailableError("Redis does not answer: timeout") from error

    def keep(self) -> None:
        """Remember the data, to which a failover returns."""
        self._kept = copy.deepcopy({number: dict(db._dict) for number, db in self.server.dbs.items()})

    def fail_over(self) -> None:
        """Return to the data of `keep`: the later writes were not replicated."""
        if self._kept is None:
            return
        for number, db in self.server.dbs.items():
            db._dict.clear()
            for key, item in copy.deepcopy(self._kept.get(number, {})).items():
                db._dict[key] = item

    def stored(self, request_id: str) -> list[int] | None:
        """Return a request's stored tokens; None if Redis does not have the request."""
        data = self.server.dbs[0]._dict if 0 in self.server.dbs else {}
        tokens = data.get(tokens_key(request_id).encode())
        if request_key(request_id).encode() not in data:
            return None
        return decode_tokens(tokens.value.decode()) if tokens is not None else []

    async def delete(self, key: str) -> None:
        """Delete a key, as an expiry does."""
        await self._client.delete(key)

    async def keys(self, pattern: str) -> list[str]:
        return sorted(await self._client.keys(pattern))

    def _latency(self) -> float:
        if self._loop.time() < self.slow_until:
            return self._draw.uniform(0.05, 2.0)
        if self._loop.time() < self.sluggish_until:
            return self._draw.uniform(0.001, 0.08)
        return self._draw.uniform(0.0001, 0.003)


class SimulatedConnection(RedisConnection):
    """A gateway's connection to the world's Redis."""

    def __init__(self, redis: SimulatedRedis) -> None:
        self._world = redis

    async def answer(self, ask: Callable[[Redis], Awaitable[Any]]) -> Any:
        return await self._world.execute(ask)

    async def _evaluate(self, redis: Redis, script: str, given: Sequence[str | int | float]) -> Any:
        return await redis.eval(source(script), *given)  # type: ignore[misc, arg-type]

    async def close(self) -> None:
        """Do nothing: there is no socket."""
