"""Write requests and their tokens to Redis.

Invariants: a token is in Redis before any client sees it; only the owner of a request writes to it (the scripts
check this). One script call per step writes the whole batch. Writing the same tokens again changes nothing, so a call
whose answer was lost is repeated.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum

from redis.asyncio import Redis

from gateway.api.callers import Caller
from gateway.session.token_stream import TokenStream
from gateway.store.connection import RedisConnection
from gateway.store.keys import OPEN_TTL_S, owned_key, request_key
from gateway.store.reading import RequestReader
from gateway.store.records import Record, encode_content, encode_logprobs, encode_progress, encode_tokens
from specinfer.errors import AlreadyExistsError, ExhaustedError, FaultError, NotFoundError
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

log = logging.getLogger(__name__)


class Written(Enum):
    """Outcome of writing one request's tokens."""

    OK = "ok"
    CANCEL = "cancel"
    """Written, and a client has cancelled the request."""
    FENCED = "fenced"
    """Another gateway owns the request; nothing was written."""
    LOST = "lost"
    """The request or its earlier tokens are missing; nothing was written."""


class RequestStore(RequestReader):
    """Reads all requests; writes the requests that one gateway owns."""

    name = "Redis"
    """Name in log lines and errors."""

    def __init__(
        self, connection: RedisConnection, gateway_id: str, retention_s: int, max_unowned: int = 1024
    ) -> None:
        """Create a store.

        Finished requests stay for `retention_s` seconds; at most `max_unowned` requests may wait for an owner.
        """
        super().__init__(connection)
        self.gateway_id = gateway_id
        self._retention_s, self._max_unowned = retention_s, max_unowned

    async def create(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, owned: bool
    ) -> bool:
        """Record a request; return whether it is new.

        Args:
            request: the request to record.
            idempotency_key: hash of the content; a repeated request has the same hash.
            caller: the sender, whose quota counts.
            owned: True if this gateway runs the request; else it waits for adoption.
        """
        content, owner = encode_content(request), self.gateway_id if owned else ""
        request_id, deadline = request.request_id, _deadline(request)
        return await self._create(request_id, owner, caller, content, idempotency_key, deadline)

    async def check_quota(self, request_id: str, idempotency_key: str, caller: Caller) -> None:
        """Check a caller's quota without recording a request."""
        await self._create(request_id, self.gateway_id, caller, "", idempotency_key, "")

    async def _create(
        self, request_id: str, owner: str, caller: Caller, content: str, key: str, deadline: str | float
    ) -> bool:
        what = await self._connection.run(
            "create",
            request_id,
            owner,
            self.gateway_id,
            caller.name,
            content,
            key,
            caller.max_concurrent,
            caller.tokens_per_minute,
            OPEN_TTL_S,
            self._max_unowned,
            deadline,
        )
        match what:
            case "other":
                raise AlreadyExistsError(f"request_id = {request_id!r}: used for another request")
            case "full":
                raise ExhaustedError(
                    f"queue full: {self._max_unowned} requests wait for a gateway, the maximum"
                )
            case "concurrent":
                raise ExhaustedError(
                    f"key {caller.name}: {caller.max_concurrent} requests are unfinished, the maximum of this key"
                )
            case "rate":
                rate = caller.tokens_per_minute
                raise ExhaustedError(
                    f"key {caller.name}: over {rate} tokens per minute, the maximum",
                    retry_after_s=10.0,
                )
        return str(what) == "created"

    async def append(self, progress: Sequence[Progress], names: Sequence[str], model: str) -> list[Written]:
        """Store new tokens and finish reasons; return the outcome of each item, in order.

        The first tokens fix the request's model, and whether its drafts are sampled.

        Args:
            progress: new tokens and finish reasons; `RequestState.adoption` is the one that may write them.
            names: `names[i]` is the name of speculator i.
            model: fingerprint of the model that generated the tokens.
        """
        items = [encode_progress(item, names) for item in progress]
        limits = (OPEN_TTL_S, self._retention_s)
        words = await self._connection.run("append", self.gateway_id, *limits, model, json.dumps(items))
        return [Written(word) for word in words]

    async def restore(
        self, state: RequestState, token_stream: TokenStream, model: str, now: float
    ) -> Written:
        """Write an unfinished request again, with all its durable tokens.

        Called after Redis lost the request or its latest tokens.
        """
        request = state.request
        word = await self._connection.run(
            "restore",
            request.request_id,
            self.gateway_id,
            self.gateway_id,
            request.caller,
            encode_content(request),
            token_stream.idempotency_key,
            now - state.queued_at,
            model,
            int(state.drawn_for),
            encode_tokens(token_stream.tokens),
            encode_logprobs(token_stream.logprobs),
            OPEN_TTL_S,
            state.adoption,
            _deadline(request),
        )
        return Written(word)

    async def adopt(self, max_count: int, models: Sequence[str]) -> list[Record]:
        """Adopt at most `max_count` requests that no gateway owns.

        Adopted requests have no tokens yet, or tokens of one of these models.
        """
        adopted = await self._connection.run("adopt", self.gateway_id, max_count, *models)
        records = [await self._load_or_end(request_id, adoption) for request_id, adoption in adopted]
        return [record for record in records if record]

    async def _load_or_end(self, request_id: str, adoption: int) -> Record | None:
        """Load a request as adopted; if damaged, end it and return None."""
        try:
            record = await self.load(request_id)
            return record and replace(record, adoption=adoption)
        except FaultError as error:
            log.error("%s", error.for_logs, exc_info=error, extra={"request_id": request_id})
            ending = Ending(FinishReason.ERROR, "the request's record in Redis is damaged", retryable=False)
            await self.disown({request_id: adoption})
            await self._end_unowned(request_id, ending)
            return None

    async def disown(self, adoptions: Mapping[str, int], not_run: bool = False) -> None:
        """Remove this gateway as owner of requests; a later adoption keeps its owner.

        Args:
            adoptions: adoption numbers of this gateway's requests, by id.
            not_run: True if the requests were adopted but could not run; their waiting time continues.
        """
        if adoptions:
            pairs = [value for pair in adoptions.items() for value in pair]
            await self._connection.run("disown", self.gateway_id, int(not_run), *pairs)

    async def cancel(self, request_id: str, caller: Caller | None) -> None:
        """Mark an owned request as cancelled; end an unowned request."""
        if caller is not None:
            stored = await self._connection.answer(
                lambda redis: redis.hget(request_key(request_id), "caller")
            )
            if stored != caller.name:
                raise NotFoundError(f"request_id = {request_id!r}: not running")
        if await self._cancel(request_id, "") in ("unknown", "finished"):
            raise NotFoundError(f"request_id = {request_id!r}: not running")

    async def leave(self, request_id: str) -> bool:
        """Record that no client reads a request at this gateway any more.

        The request is cancelled unless a client reads it at another gateway.

        Returns:
            True if the owner must end the request.
        """
        return await self._cancel(request_id, self.gateway_id) == "asked"

    async def owned(self) -> dict[str, int]:
        """Return the adoption numbers of this gateway's unfinished requests, by id."""
        return dict(await self._connection.answer(lambda redis: _owned(redis, self.gateway_id)))

    async def listen(self, request_id: str) -> None:
        """Record that a client reads a request at this gateway, until `leave`."""
        await self._connection.run("listen", request_id, self.gateway_id)

    async def abandon(self, patience_s: float, reason: str) -> int:
        """End unowned requests after deadline or patience; return their number."""
        ends = Ending(FinishReason.ERROR, reason).to_json(), Ending(FinishReason.DEADLINE).to_json()
        return int(await self._connection.run("abandon", patience_s, *ends, self._retention_s))

    async def discard(self, request_id: str, adoption: int = 1) -> None:
        """Remove a request that this gateway cannot run, unless it was adopted again."""
        await self._connection.run("discard", request_id, self.gateway_id, adoption)

    async def _cancel(self, request_id: str, edge: str) -> str:
        return await self._end_unowned(request_id, Ending(FinishReason.CANCELLED), edge)

    async def _end_unowned(self, request_id: str, ending: Ending, edge: str = "") -> str:
        """End an unowned request, else mark it; return the script's outcome."""
        arguments = (request_id, ending.to_json(), self._retention_s, edge)
        return str(await self._connection.run("cancel", *arguments))


def _deadline(request: GenerationRequest) -> float | str:
    return "" if request.deadline_s is None else request.deadline_s


async def _owned(redis: Redis, gateway_id: str) -> list[tuple[str, int]]:
    request_ids: list[str] = [str(name) for name in await redis.zrange(owned_key(gateway_id), 0, -1)]
    async with redis.pipeline(transaction=False) as pipe:
        for request_id in request_ids:
            pipe.hget(request_key(request_id), "adoption")
        return [
            (name, int(number or 0)) for name, number in zip(request_ids, await pipe.execute(), strict=True)
        ]
