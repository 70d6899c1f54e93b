"""Read requests from Redis, whichever gateway owns them."""

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from gateway.api.callers import Caller
from gateway.store.connection import RedisConnection
from gateway.store.keys import TOKEN_WIDTH, logprobs_key, logprobs_width, request_key, tokens_key
from gateway.store.records import Glimpse, Known, Record, read_glimpse, read_record
from specinfer.errors import FaultError

_FIELDS = ("content", "idempotency_key", "caller", "owner", "created", "model", "drawn", "adoption", "end")


class RequestReader:
    """Reads requests without changing anything."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        """Return a request; None if it is missing or another caller's."""
        fields, tokens, logprobs, time = await self._connection.answer(lambda redis: _read(redis, request_id))
        values = dict(zip(_FIELDS, fields, strict=True))
        if values["content"] is None or (caller is not None and values["caller"] != caller.name):
            return None
        seconds, microseconds = time
        return read_record(request_id, values, tokens or "", logprobs or "", seconds + microseconds / 1e6)

    async def glimpse(self, positions: Mapping[str, Known]) -> dict[str, Glimpse | FaultError | None]:
        """Return the new tokens and endings of requests, after known positions.

        A value is None for a missing request, and an error for a request that cannot be decoded.
        """
        answers = await self._connection.answer(lambda redis: _read_new(redis, positions))
        rows = zip(positions.items(), *(answers[at::3] for at in range(3)), strict=True)
        return {
            name: read_glimpse(name, fields, tokens, logprobs, top)
            for (name, (_, top)), fields, tokens, logprobs in rows
        }


async def _read_new(redis: Redis, positions: Mapping[str, Known]) -> list[Any]:
    async with redis.pipeline(transaction=False) as pipe:
        for request_id, (start, top) in positions.items():
            # read the end first: if it is set, the tokens read afterwards are complete
            pipe.hmget(request_key(request_id), "state", "end")
            pipe.getrange(tokens_key(request_id), start * TOKEN_WIDTH, -1)
            pipe.getrange(logprobs_key(request_id), start * logprobs_width(top), -1)
        replies: list[Any] = await pipe.execute()
    return replies


async def _read(redis: Redis, request_id: str) -> list[Any]:
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hmget(request_key(request_id), _FIELDS)
        pipe.get(tokens_key(request_id))
        pipe.get(logprobs_key(request_id))
        pipe.time()
        replies: list[Any] = await pipe.execute()
    return replies
