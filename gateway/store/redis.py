"""Store requests and leases in Redis.

One script call per step writes the whole batch in one atomic step; the scripts check the owner.
"""

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from redis.asyncio import Redis

from gateway.api.callers import Caller
from gateway.session.token_stream import TokenStream
from gateway.store.connection import RedisConnection
from gateway.store.keys import (
    OPEN_TTL_S,
    TOKEN_WIDTH,
    logprobs_key,
    owned_key,
    request_key,
    tokens_key,
)
from gateway.store.protocol import GatewayReport, Renewal, Store, VerifierLease, Written, is_new
from gateway.store.records import (
    Glimpse,
    Known,
    Record,
    encode_content,
    encode_logprobs,
    encode_progress,
    encode_tokens,
    logprobs_width,
    read_glimpse,
    read_record,
)
from specinfer.errors import FaultError, NotFoundError
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

log = logging.getLogger(__name__)
_FIELDS = ("content", "idempotency_key", "caller", "owner", "created", "model", "drawn", "adoption", "end")


class RedisStore(Store):
    """Requests and leases of all gateways that use this Redis."""

    name = "Redis"

    def __init__(
        self,
        connection: RedisConnection,
        gateway_id: str,
        retention_s: int,
        max_unowned: int = 1024,
        lease_s: float = 30.0,
    ) -> None:
        """Create a store.

        Finished requests stay for `retention_s` seconds; at most `max_unowned` requests may wait for an owner.
        """
        self._connection, self.gateway_id = connection, gateway_id
        self._retention_s, self._max_unowned = retention_s, max_unowned
        self._lease_ms = round(lease_s * 1000)

    async def create(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, owned: bool
    ) -> bool:
        content, owner = encode_content(request), self.gateway_id if owned else ""
        request_id, deadline = request.request_id, _deadline(request)
        return await self._create(request_id, owner, caller, content, idempotency_key, deadline)

    async def check_quota(self, request_id: str, idempotency_key: str, caller: Caller) -> None:
        await self._create(request_id, self.gateway_id, caller, "", idempotency_key, "")

    async def _create(
        self, request_id: str, owner: str, caller: Caller, content: str, key: str, deadline: str | float
    ) -> bool:
        word = await self._connection.run(
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
        return is_new(str(word), request_id, caller, self._max_unowned)

    async def append(self, progress: Sequence[Progress], names: Sequence[str], model: str) -> list[Written]:
        items = [encode_progress(item, names) for item in progress]
        limits = (OPEN_TTL_S, self._retention_s)
        words = await self._connection.run("append", self.gateway_id, *limits, model, json.dumps(items))
        return [Written(word) for word in words]

    async def restore(
        self, state: RequestState, token_stream: TokenStream, model: str, now: float
    ) -> Written:
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
        if adoptions:
            pairs = [value for pair in adoptions.items() for value in pair]
            await self._connection.run("disown", self.gateway_id, int(not_run), *pairs)

    async def cancel(self, request_id: str, caller: Caller | None) -> None:
        if caller is not None:
            stored = await self._connection.answer(
                lambda redis: redis.hget(request_key(request_id), "caller")
            )
            if stored != caller.name:
                raise NotFoundError(f"request_id = {request_id!r}: not running")
        if await self._cancel(request_id, "") in ("unknown", "finished"):
            raise NotFoundError(f"request_id = {request_id!r}: not running")

    async def leave(self, request_id: str) -> bool:
        return await self._cancel(request_id, self.gateway_id) == "asked"

    async def owned(self) -> dict[str, int]:
        return dict(await self._connection.answer(lambda redis: _owned(redis, self.gateway_id)))

    async def listen(self, request_id: str) -> None:
        await self._connection.run("listen", request_id, self.gateway_id)

    async def abandon(self, patience_s: float, reason: str) -> int:
        ends = Ending(FinishReason.ERROR, reason).to_json(), Ending(FinishReason.DEADLINE).to_json()
        return int(await self._connection.run("abandon", patience_s, *ends, self._retention_s))

    async def discard(self, request_id: str, adoption: int = 1) -> None:
        await self._connection.run("discard", request_id, self.gateway_id, adoption)

    async def load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        fields, tokens, logprobs, time = await self._connection.answer(lambda redis: _read(redis, request_id))
        values = dict(zip(_FIELDS, fields, strict=True))
        if values["content"] is None or (caller is not None and values["caller"] != caller.name):
            return None
        seconds, microseconds = time
        return read_record(request_id, values, tokens or "", logprobs or "", seconds + microseconds / 1e6)

    async def glimpse(self, positions: Mapping[str, Known]) -> dict[str, Glimpse | FaultError | None]:
        answers = await self._connection.answer(lambda redis: _read_new(redis, positions))
        rows = zip(positions.items(), *(answers[at::3] for at in range(3)), strict=True)
        return {
            name: read_glimpse(name, fields, tokens, logprobs, top)
            for (name, (_, top)), fields, tokens, logprobs in rows
        }

    async def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
        epoch, alive, cancels, lost = await self._connection.run(
            "renew",
            self.gateway_id,
            self._lease_ms,
            json.dumps(asdict(report)),
            secrets.token_hex(8),
            *_pairs(leases),
        )
        reports = [_report(text) for text in alive]
        return Renewal(epoch, reports, list(cancels), list(lost))

    async def claim(self, instance_id: str) -> VerifierLease | str:
        fence, holder = await self._connection.run("claim", instance_id, self.gateway_id, self._lease_ms)
        return str(holder) if holder else VerifierLease(instance_id, int(fence))

    async def release(self, lease: VerifierLease) -> None:
        await self._connection.run("yield", lease.instance_id, self.gateway_id, lease.fence)

    async def resign(self, leases: Sequence[VerifierLease]) -> None:
        await self._connection.run("leave", self.gateway_id, *_pairs(leases))

    async def close(self) -> None:
        await self._connection.close()

    async def _cancel(self, request_id: str, edge: str) -> str:
        return await self._end_unowned(request_id, Ending(FinishReason.CANCELLED), edge)

    async def _end_unowned(self, request_id: str, ending: Ending, edge: str = "") -> str:
        """End an unowned request, else mark it; return the script's outcome."""
        arguments = (request_id, ending.to_json(), self._retention_s, edge)
        return str(await self._connection.run("cancel", *arguments))


def _report(text: str) -> GatewayReport:
    """Parse a gateway's report; ignore fields that this version does not know."""
    known = {field.name for field in fields(GatewayReport)}
    said = {name: value for name, value in json.loads(text).items() if name in known}
    return GatewayReport(**{**said, "models": tuple(said.get("models", ()))})


def _pairs(leases: Sequence[VerifierLease]) -> list[str]:
    return [text for lease in leases for text in (lease.instance_id, str(lease.fence))]


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
