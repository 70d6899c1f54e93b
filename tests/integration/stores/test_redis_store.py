"""Requests and leases of several gateways on Redis: ownership, adoption, expiry."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.api.callers import ANYBODY, Caller
from gateway.session.token_stream import TokenStream
from gateway.store.connection import RedisConnection
from gateway.store.keys import logprobs_key, request_key, tokens_key, verifier_key
from gateway.store.protocol import GatewayReport, VerifierLease, Written
from gateway.store.redis import RedisStore
from specinfer.errors import AlreadyExistsError, ExhaustedError, UnavailableError
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState

ALICE = Caller("alice", max_concurrent=2, tokens_per_minute=5)


def state_of(tokens: list[int], **requested: Any) -> RequestState:
    request = GenerationRequest(secrets.token_hex(6), (1, 2), 10, Sampling(temperature=0), **requested)
    return RequestState(request, 0.0, 0, request.sampling, [1, 2, *tokens])


@asynccontextmanager
async def connected(redis_url: str) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection.open(redis_url)
    yield connection
    await connection.close()


class Pair:
    """Stores and leases of two gateways on the same Redis."""

    def __init__(self, connection: RedisConnection, lease_s: float = 30.0) -> None:
        names = [secrets.token_hex(4) for _ in range(2)]
        self.a, self.b = (RedisStore(connection, name, 60, lease_s=lease_s) for name in names)

    async def begin(self, state: RequestState, caller: Caller = ANYBODY) -> str:
        """Renew gateway A's lease, and create a request that it owns."""
        await self.a.renew(GatewayReport(self.a.gateway_id), [])
        await self.a.create(state.request, "idempotency_key", caller, owned=True)
        return state.request.request_id


def rows(*values: float) -> list[LogprobRow]:
    return [LogprobRow(value) for value in values]


def finished(state: RequestState) -> RequestState:
    state.finish = FinishReason.LENGTH
    return state


async def test_ended_requests_expire(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([5], logprobs=True)
        name = await stores.begin(state)
        await stores.a.append([Progress(state, [5], rows(-0.5), 0, False)], [], "model")
        await stores.a.append([Progress(finished(state), [], [], 1, True)], [], "model")
        for key in (request_key(name), tokens_key(name), logprobs_key(name)):
            assert 0 < await connection.redis.ttl(key) <= 60


async def test_only_the_owner_writes_and_a_former_owner_is_fenced(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([5])
        name = await stores.begin(state)
        await stores.a.append([Progress(state, [5], [], 0, False)], [], "model")
        assert await stores.b.adopt(10, ["model"]) == [], "its lease is alive"
        foreign = await stores.b.append([Progress(state, [9], [], 1, False)], [], "model")
        assert foreign == [Written.FENCED]
        await connection.redis.delete(f"specinfer:2:gateway:{stores.a.gateway_id}")
        assert await stores.b.adopt(10, ["another"]) == []
        (record,) = await stores.b.adopt(10, ["model"])
        assert (record.tokens, record.drawn_for, record.model) == ([5], False, "model")
        assert record.adoption == 2
        late = await stores.a.append([Progress(finished(state), [9], [], 1, True)], [], "model")
        assert late == [Written.FENCED]
        actual = await stores.b.load(name)
        assert actual is not None
        assert (actual.tokens, actual.ending) == ([5], None)


async def test_a_request_that_redis_lost_is_stored_again(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([5])
        name = await stores.begin(state)
        await connection.redis.delete(request_key(name), tokens_key(name))
        progress = Progress(state, [5], [], 0, False)
        assert await stores.a.append([progress], [], "model") == [Written.LOST]
        token_stream = TokenStream(state.request, "idempotency_key")
        assert await stores.a.restore(state, token_stream, "model", 3.0) is Written.OK
        assert await stores.a.append([progress], [], "model") == [Written.OK]
        record = await stores.a.load(name)
        assert record is not None
        assert (record.tokens, record.idempotency_key, record.model) == ([5], "idempotency_key", "model")
        assert 3.0 <= record.age_s < 300.0
        assert await stores.b.restore(state, token_stream, "model", 3.0) is Written.FENCED
        later = replace(state, adoption=2)
        assert await stores.b.restore(later, token_stream, "model", 3.0) is Written.OK, "the later owner"
        assert await stores.a.append([progress], [], "model") == [Written.FENCED]


async def test_the_first_client_that_leaves_does_not_cancel_for_others(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([])
        name = await stores.begin(state)
        await stores.b.renew(GatewayReport(stores.b.gateway_id), [])
        await stores.b.listen(name)  # a client at the other gateway, too
        assert not await stores.a.leave(name)
        assert await stores.b.leave(name)


async def test_quotas_count_over_all_gateways(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        caller = Caller(secrets.token_hex(4), max_concurrent=2, tokens_per_minute=5)
        stores = Pair(connection)
        first, second, third = (state_of([], caller=caller.name) for _ in range(3))
        await stores.begin(first, caller)
        await stores.b.create(second.request, "idempotency_key", caller, owned=True)
        with pytest.raises(ExhaustedError, match="2 requests are unfinished"):
            await stores.b.create(third.request, "idempotency_key", caller, owned=True)
        with pytest.raises(ExhaustedError, match="2 requests are unfinished"):
            await stores.b.check_quota(third.request.request_id, "idempotency_key", caller)
        await stores.b.check_quota(first.request.request_id, "idempotency_key", caller)
        with pytest.raises(AlreadyExistsError):
            await stores.b.check_quota(first.request.request_id, "another", caller)
        await stores.a.append([Progress(finished(first), [3] * 4, [], 0, True)], [], "model")
        await stores.b.check_quota(third.request.request_id, "idempotency_key", caller)
        assert await stores.b.load(third.request.request_id, caller) is None, "the check stores nothing"
        await stores.b.create(third.request, "idempotency_key", caller, owned=True)
        await stores.b.append([Progress(finished(second), [3], [], 0, True)], [], "model")
        with pytest.raises(ExhaustedError, match="5 tokens per minute"):
            await stores.b.create(
                state_of([], caller=caller.name).request, "idempotency_key", caller, owned=True
            )


async def test_unowned_requests_end_if_they_are_not_adopted(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        store, state = Pair(connection).a, state_of([])
        name = state.request.request_id
        await store.create(state.request, "idempotency_key", ANYBODY, owned=False)
        await store.abandon(100.0, "no verifier")
        record = await store.load(name)
        assert record is not None
        assert record.ending is None
        await connection.redis.zadd("specinfer:2:unowned", {name: 0})
        await store.abandon(100.0, "no verifier")
        record = await store.load(name)
        assert record is not None
        assert record.ending is not None
        assert (record.ending.error, record.ending.retryable) == ("no verifier", True)


async def test_a_verifier_has_one_holder_and_fences_rise_even_if_redis_loses_its_data(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, instance = Pair(connection), secrets.token_hex(4)
        first = await stores.a.claim(instance)
        assert isinstance(first, VerifierLease)
        assert await stores.b.claim(instance) == stores.a.gateway_id
        assert (await stores.a.renew(GatewayReport(stores.a.gateway_id), [first])).lost == []
        await connection.redis.delete(verifier_key(instance), "specinfer:2:fence")
        renewal = await stores.a.renew(GatewayReport(stores.a.gateway_id), [first])
        assert renewal.lost == [instance]
        second = await stores.b.claim(instance)
        assert isinstance(second, VerifierLease)
        assert second.fence > first.fence
        await stores.a.release(first)  # not its own any more
        assert await stores.a.claim(instance) == stores.b.gateway_id
        await stores.b.release(second)
        third = await stores.a.claim(instance)
        assert isinstance(third, VerifierLease)
        assert third.fence > second.fence


async def test_a_lease_expires_and_a_leaving_gateway_frees_everything(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores = Pair(connection, lease_s=0.05)
        state = state_of([])
        name = await stores.begin(state)
        report_b = GatewayReport(stores.b.gateway_id, sessions=1, room=3)
        async with asyncio.timeout(60):
            key = f"specinfer:2:gateway:{stores.a.gateway_id}"
            while await connection.redis.exists(key):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        alive = (await stores.b.renew(report_b, [])).alive
        assert stores.a.gateway_id not in [report.gateway_id for report in alive]
        assert report_b in alive
        assert name in [record.request.request_id for record in await stores.b.adopt(100, [])]
        lease = await stores.b.claim(name)
        assert isinstance(lease, VerifierLease)
        await stores.b.resign([lease])
        await stores.a.renew(GatewayReport(stores.a.gateway_id), [])
        assert isinstance(await stores.a.claim(name), VerifierLease)
        assert name in [record.request.request_id for record in await stores.a.adopt(100, [])]


async def test_an_absent_redis_is_unavailable() -> None:
    async with connected("redis://127.0.0.1:9/0") as connection:
        with pytest.raises(UnavailableError, match="Redis"):
            await connection.check()
        with pytest.raises(UnavailableError, match="Redis"):
            await RedisStore(connection, "a", 60).create(state_of([]).request, "", ANYBODY, owned=True)


async def test_many_concurrent_calls_wait_for_connections(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores = Pair(connection)
        states = [state_of([]) for _ in range(400)]
        new = await asyncio.gather(
            *(stores.a.create(state.request, "idempotency_key", ANYBODY, owned=True) for state in states)
        )
        assert all(new)
        assert len(connection.redis.connection_pool._available_connections) <= 64
