"""Request state and token streams in Redis. The only file that knows Redis.

    specinfer:request:<id>   JSON: prompt and parameters; written once
    specinfer:state:<id>     hash: state, finish reason, error
    specinfer:tokens:<id>    text: generated token ids, each in a field of eight characters

Invariant: a token is in Redis before any client sees it. One pipeline per iteration and one command per
request, since passes need the cores that answers are read on: fields have a place, so writing them again
after a lost reply changes nothing and needs no transaction.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import asdict

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.requests.request import GenerationRequest
from gateway.requests.step import Progress
from specinfer.errors import AlreadyExistsError, SettingError, UnavailableError

_RUNNING_TTL_S = 24 * 3600
_ATTEMPTS = 5
_FIELD = 8
"""Characters per token."""


class RequestStore:
    """Writes what must survive."""

    def __init__(self, redis: Redis, retention_s: int) -> None:
        self._redis, self._retention_s = redis, retention_s

    @classmethod
    def connect(cls, url: str, retention_s: int) -> "RequestStore":
        """A store on the server at `url`; connects on first use.

        Raises:
            SettingError: if it is no URL of a Redis.
        """
        try:
            redis = Redis.from_url(url, decode_responses=True, socket_timeout=5.0)
        except ValueError as error:
            shown = re.sub(r"//[^/@]*@", "//***@", url)  # without the password
            raise SettingError("redis_url", shown, " ".join(str(error).split())) from error
        return cls(redis, retention_s)

    async def check(self) -> None:
        """Asks the server whether it is there.

        Raises:
            UnavailableError: if it does not answer.
        """
        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not answer: {error}") from error

    async def create(self, request: GenerationRequest) -> None:
        """Records a new request.

        Raises:
            AlreadyExistsError: if its id was used within the retention time.
            UnavailableError: if Redis does not answer.
        """
        record = {
            "prompt": request.prompt,
            "max_new_tokens": request.max_new_tokens,
            "sampling": asdict(request.sampling),
            "stop_strings": request.stop_strings,
            "stop_token_ids": sorted(request.stop_token_ids),
            "priority": request.priority,
            "speculation": request.speculation.name.lower(),
        }
        key = _request_key(request.request_id)
        try:
            new = await self._redis.set(key, json.dumps(record), nx=True, ex=_RUNNING_TTL_S)
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis does not answer: {error}") from error
        if not new:
            raise AlreadyExistsError(f"request_id = {request.request_id!r}: already used")

    async def discard(self, request_id: str) -> None:
        """Forgets a request that was refused after `create`."""
        await self._redis.delete(*_keys(request_id))

    async def append(self, progress: Sequence[Progress]) -> None:
        """Makes new tokens and finishes durable, in one pipeline; finishes after their tokens.

        Raises:
            UnavailableError: if Redis does not answer after several attempts.
        """
        for attempt in range(_ATTEMPTS):
            try:
                await self._append_once(progress)
            except (RedisError, OSError) as error:
                if attempt == _ATTEMPTS - 1:
                    raise UnavailableError(f"Redis does not answer: {error}") from error
                await asyncio.sleep(0.1 * 2**attempt)
            else:
                _heed_cancellation()
                return

    async def _append_once(self, progress: Sequence[Progress]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for item in progress:
                request_id, state = item.state.request.request_id, item.state
                if item.tokens:
                    key, fields = _tokens_key(request_id), "".join(f"{t:<{_FIELD}}" for t in item.tokens)
                    if item.start:
                        pipe.setrange(key, item.start * _FIELD, fields)
                    else:
                        pipe.set(key, fields)
                if item.final and state.finish is not None:
                    pipe.hset(_state_key(request_id), "state", "finished")
                    pipe.hset(_state_key(request_id), "finish", state.finish.name.lower())
                    pipe.hset(_state_key(request_id), "error", state.error)
                    for key in _keys(request_id):
                        pipe.expire(key, self._retention_s)
                elif item.tokens and not item.start:
                    pipe.hset(_state_key(request_id), "state", "running")
                    for key in _keys(request_id):
                        pipe.expire(key, _RUNNING_TTL_S)
            await pipe.execute()

    async def tokens(self, request_id: str) -> list[int]:
        """The generated tokens of a request so far."""
        stored = await self._redis.get(_tokens_key(request_id))
        return [int(field) for field in (stored or "").split()]

    async def state(self, request_id: str) -> dict[str, str]:
        """State, finish reason and error of a request; empty before its first token."""
        recorded = await self._redis.hgetall(_state_key(request_id))
        return {str(key): str(value) for key, value in recorded.items()}

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()


def _request_key(request_id: str) -> str:
    return f"specinfer:request:{request_id}"


def _tokens_key(request_id: str) -> str:
    return f"specinfer:tokens:{request_id}"


def _state_key(request_id: str) -> str:
    return f"specinfer:state:{request_id}"


def _keys(request_id: str) -> list[str]:
    return [_request_key(request_id), _state_key(request_id), _tokens_key(request_id)]


def _heed_cancellation() -> None:
    """The Redis client swallows a cancellation that comes with an answer; the task would never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
