"""Redis loses data, or answers late or never: no token is lost or doubled, no gateway dies."""

import asyncio
import math
import secrets
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from gateway.api.callers import ANYBODY, Caller
from gateway.store.keys import PREFIX, TOKEN_WIDTH, request_key, tokens_key
from gateway.store.protocol import GatewayReport
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest
from tests.integration.failures.test_gateways import PROMPT, begin, rest, tokens_of, two_gateways
from tests.integration.failures.test_returning_clients import attach
from tests.integration.stores.test_redis_store import Pair, connected, state_of
from tests.support.oracle import greedy
from tests.support.system import request_for, running_system


def new_request(**options: Any) -> GenerationRequest:
    return GenerationRequest(
        secrets.token_hex(6),
        tuple(PROMPT),
        options.pop("max_new_tokens", 16),
        Sampling(temperature=0),
        **options,
    )


async def test_requests_that_waited_without_any_gateway_run(redis_url: str) -> None:
    async with running_system(redis_url, lease_s=0.6, patience_s=30.0) as system:
        request = new_request()
        system.gateway.lease_manager._rebalancer.pause(1.5)  # as when Redis has just come back
        await system.store.create(request, "idempotency_key", ANYBODY, owned=False)
        async with Redis.from_url(redis_url) as redis:
            await redis.zadd(f"{PREFIX}unowned", {request.request_id: 1.0})
        replies = await rest(system.stub, request.request_id, 0)
        assert tokens_of(replies) == greedy(PROMPT, 16)


async def test_a_request_that_no_gateway_can_run_ends_after_the_patience(redis_url: str) -> None:
    """Gateways adopt and disown it repeatedly, without progress."""
    async with running_system(redis_url, lease_s=0.6, patience_s=2.0, kv_tokens=64) as system:
        request = new_request(max_new_tokens=300)
        await system.store.create(request, "idempotency_key", ANYBODY, owned=False)
        record = await system.ended(request.request_id)
        assert record.ending is not None
        assert record.ending.finish is FinishReason.ERROR


async def test_a_repeated_write_is_counted_once(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([5, 6], caller="carol")
        await stores.begin(state, Caller("carol"))
        for _ in range(2):
            await stores.a.append([Progress(state, [5, 6], [], 0, False)], [], "model")
        (key,) = [key async for key in connection.redis.scan_iter(f"{PREFIX}rate:carol:*")]
        assert await connection.redis.get(key) == "2"


async def test_reports_of_newer_gateways_are_readable(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores = Pair(connection)
        await stores.a.renew(GatewayReport(stores.a.gateway_id, 2), [])
        key = f"{PREFIX}gateway:{stores.a.gateway_id}"
        report = await connection.redis.get(key)
        await connection.redis.set(key, report.replace("}", ', "invented": 1}'), keepttl=True)
        renewal = await stores.b.renew(GatewayReport(stores.b.gateway_id), [])
        assert GatewayReport(stores.a.gateway_id, 2) in renewal.alive


async def test_a_record_that_cannot_be_read_ends_alone_when_it_is_adopted(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If its adoption failed, those adopted with it would wait forever."""
    async with running_system(redis_url, lease_s=0.6) as system:
        damaged, whole = new_request(), [new_request() for _ in range(3)]
        system.gateway.lease_manager._rebalancer.adopt_from = math.inf  # until the records are prepared
        for request in (damaged, *whole):
            await system.store.create(request, "idempotency_key", ANYBODY, owned=False)
        async with Redis.from_url(redis_url) as redis:
            await redis.set(tokens_key(damaged.request_id), "5       no token")
        system.gateway.lease_manager._rebalancer.adopt_from = 0.0
        for request in whole:
            replies = await asyncio.wait_for(rest(system.stub, request.request_id, 0), 60)
            assert tokens_of(replies) == greedy(PROMPT, 16)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(rest(system.stub, damaged.request_id, 0), 60)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        async with Redis.from_url(redis_url, decode_responses=True) as redis:
            assert await redis.hget(request_key(damaged.request_id), "state") == "finished"
    ids = [getattr(r, "request_id", "") for r in caplog.records if "cannot be read" in r.getMessage()]
    assert set(ids) == {damaged.request_id}


async def test_followers_of_an_unreadable_record_get_an_error_and_others_continue(redis_url: str) -> None:
    """The passes wait meanwhile, so that no write repairs the record."""
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, stub):
        names, states = ["damaged", "whole"], system.loop.scheduler.states
        go_on = system.hold(lambda: len(states) < 2 or all(system.generated(name) > 10 for name in names))
        requests = [request_for(PROMPT, max_new_tokens=450, request_id=name) for name in names]
        readers = await asyncio.gather(*(begin(system.stub, request) for request in requests))
        damaged, followed = [attach(stub, name) for name in names]
        for reader in (damaged, followed):
            assert await reader.read()
        async with Redis.from_url(redis_url) as redis:
            await redis.setrange(tokens_key("damaged"), 440 * TOKEN_WIDTH, "no token")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(damaged.finish(), 60)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert not other.running.done(), "the gateway continues"
        go_on.set()
        assert await followed.finish() == await readers[1].finish() == greedy(PROMPT, 450)
        readers[0].call.cancel()
