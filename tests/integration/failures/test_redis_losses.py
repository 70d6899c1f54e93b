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
from gateway.store.leases import GatewayReport
from gateway.store.requests import RequestStore, Written
from specinfer.errors import UnavailableError
from specinfer.sampling import Sampling
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest
from specinfer.statuses import FinishReason
from specinfer.v1 import generation_pb2
from tests.integration.failures.test_gateways import LONG, PROMPT, begin, rest, tokens_of, two_gateways
from tests.integration.failures.test_returning_clients import attach
from tests.integration.stores.test_redis_store import Pair, connected, state_of
from tests.support.oracle import greedy
from tests.support.system import crash, request_for, running_system, until


def new_request(**options: Any) -> GenerationRequest:
    return GenerationRequest(
        secrets.token_hex(6),
        tuple(PROMPT),
        options.pop("max_new_tokens", 16),
        Sampling(temperature=0),
        **options,
    )


def failing_once(method: Any) -> Any:
    """Return the method with a first call that fails."""
    calls = 0

    async def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise UnavailableError("Redis does not answer")
        return await method(*arguments, **options)

    return call


async def test_tokens_that_redis_lost_the_end_of_are_written_again(redis_url: str) -> None:
    """This happens with `appendfsync everysec` when the machine fails."""
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, stub):
        request = request_for(PROMPT, max_new_tokens=400)
        reader = await begin(system.stub, request)
        key = tokens_key(request.request_id)
        async with Redis.from_url(redis_url, decode_responses=True) as redis:
            await redis.set(key, await redis.getrange(key, 0, 8 * 5 - 1))
        second = attach(stub, request.request_id)
        assert await second.finish() == greedy(PROMPT, 400)
        assert await reader.finish() == greedy(PROMPT, 400)
        assert tokens_of(await rest(stub, request.request_id, 0)) == greedy(PROMPT, 400)
        assert not other.running.done()


async def test_an_adopted_request_whose_tokens_redis_lost_shows_none_twice(redis_url: str) -> None:
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, stub):
        request = request_for(PROMPT, max_new_tokens=300)
        await begin(system.stub, request)
        second = attach(stub, request.request_id)
        while len(second.tokens) < 20:
            assert await second.read()
        await crash(system.gateway)
        key = tokens_key(request.request_id)
        async with Redis.from_url(redis_url, decode_responses=True) as redis:
            await redis.set(key, await redis.getrange(key, 0, 8 * 5 - 1))
        assert await second.finish() == greedy(PROMPT, 300)
        system.gateway = other


async def test_redis_may_fail_again_while_it_is_filled(redis_url: str) -> None:
    async with running_system(redis_url, lease_s=30.0, linger_seconds=5.0) as system:
        reader = await begin(system.stub, request_for(PROMPT, max_new_tokens=LONG))
        system.store.restore = failing_once(system.store.restore)  # type: ignore[method-assign]
        await system.store._connection.redis.flushall()
        async with asyncio.timeout(60):
            assert await reader.finish() == greedy(PROMPT, LONG)


async def test_waiting_requests_are_stored_again_although_redis_fails_in_between(redis_url: str) -> None:
    async with running_system(redis_url, lease_s=0.6, max_batch=1, linger_seconds=5.0) as system:
        running = await begin(system.stub, request_for(PROMPT, max_new_tokens=500))
        waiting = request_for(PROMPT[::-1], max_new_tokens=5)
        go_on = system.hold()  # so that it waits until the end
        later = asyncio.create_task(system.stub.Generate(waiting).read())
        await until(lambda: system.loop.scheduler.waiting == 1)
        system.gateway.lease_manager._leases.claim = failing_once(system.gateway.lease_manager._leases.claim)  # type: ignore[method-assign]
        await system.store._connection.redis.flushall()
        while await system.store.load(waiting.request_id) is None:  # noqa: ASYNC110  # nothing signals it
            await asyncio.sleep(0.02)
        go_on.set()
        running.call.cancel()
        await later


async def test_a_finished_request_is_shown_although_redis_failed_at_its_adoption(redis_url: str) -> None:
    """Its tokens are stored, but its owner died before it stored the end."""
    async with running_system(redis_url, lease_s=0.6) as system:
        request, store = new_request(max_new_tokens=5), RequestStore(system.store._connection, "dead", 60)
        await store.create(request, "idempotency_key", ANYBODY, owned=True)
        state = state_of([])
        state.request, state.tokens = request, [*PROMPT, *greedy(PROMPT, 5)]
        model = system.loop.verifier.model_fingerprint
        progress = Progress(state, greedy(PROMPT, 5), [], 0, False)
        await store.append([progress], [], model)
        system.store.append = failing_once(system.store.append)  # type: ignore[method-assign]
        await store.disown({request.request_id: 1})
        async with asyncio.timeout(60):
            replies = await rest(system.stub, request.request_id, 0)
        assert tokens_of(replies) == greedy(PROMPT, 5)
        assert replies[-1].summary.finish_reason == generation_pb2.FINISH_REASON_LENGTH


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


async def test_a_gateway_that_slept_does_not_write_to_a_cancelled_request(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([5])
        name = await stores.begin(state)
        await connection.redis.delete(f"{PREFIX}gateway:{stores.a.gateway_id}")
        await stores.b.cancel(name, ANYBODY)
        late = await stores.a.append([Progress(state, [5], [], 0, False)], [], "model")
        assert late == [Written.FENCED]
        record = await stores.b.load(name)
        assert record is not None
        assert record.tokens == []


async def test_requests_stored_by_a_gateway_without_a_lease_are_adopted(redis_url: str) -> None:
    """Redis lost its data; a gateway stored a request before it renewed its lease, and died."""
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([])
        await stores.a.create(state.request, "idempotency_key", ANYBODY, owned=True)
        (record,) = await stores.b.adopt(10, [])
        assert record.request == state.request


async def test_a_repeated_write_is_counted_once(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores, state = Pair(connection), state_of([5, 6], caller="carol")
        await stores.begin(state, Caller("carol"))
        for _ in range(2):
            await stores.a.append([Progress(state, [5, 6], [], 0, False)], [], "model")
        (key,) = [key async for key in connection.redis.scan_iter(f"{PREFIX}rate:carol:*")]
        assert await connection.redis.get(key) == "2"


async def test_a_caller_with_many_waiting_requests_does_not_keep_others_from_being_adopted(
    redis_url: str,
) -> None:
    async with connected(redis_url) as connection:
        stores, greedy_one = Pair(connection), Caller("many")
        for _ in range(5):
            await stores.a.create(state_of([]).request, "idempotency_key", greedy_one, owned=False)
        late = state_of([]).request
        await stores.a.create(late, "idempotency_key", Caller("one"), owned=False)
        adopted = await stores.b.adopt(2, [])
        assert late.request_id in [record.request.request_id for record in adopted]
        await stores.b.disown({record.request.request_id: record.adoption for record in adopted})


async def test_reports_of_newer_gateways_are_readable(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        stores = Pair(connection)
        await stores.lease_a.renew(GatewayReport(stores.a.gateway_id, 2), [])
        key = f"{PREFIX}gateway:{stores.a.gateway_id}"
        report = await connection.redis.get(key)
        await connection.redis.set(key, report.replace("}", ', "invented": 1}'), keepttl=True)
        renewal = await stores.lease_b.renew(GatewayReport(stores.b.gateway_id), [])
        assert GatewayReport(stores.a.gateway_id, 2) in renewal.alive


async def test_a_deadline_ends_an_unowned_request(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        store = Pair(connection).a
        soon, later = new_request(deadline_s=0.001), new_request(deadline_s=1000.0)
        for request in (soon, later):
            await store.create(request, "idempotency_key", ANYBODY, owned=False)
        await asyncio.sleep(0.01)
        await store.abandon(1000.0, "why")
        ended, open_ = [await store.load(request.request_id) for request in (soon, later)]
        assert ended is not None
        assert ended.ending is not None
        assert ended.ending.finish is FinishReason.DEADLINE
        assert open_ is not None
        assert open_.ending is None


async def test_a_slow_redis_does_not_delay_the_release_of_the_cache(redis_url: str) -> None:
    """The next request needs that room of the cache."""
    async with running_system(redis_url, kv_tokens=96, linger_seconds=5.0) as system:
        append = system.store.append

        async def slow(progress: Any, *arguments: Any) -> Any:
            if any(item.final for item in progress):
                await asyncio.sleep(1.0)
            return await append(progress, *arguments)

        system.store.append = slow  # type: ignore[method-assign]
        texts = await asyncio.gather(*(system.tokens([*PROMPT, 20 + i], max_new_tokens=60) for i in range(4)))
        assert texts == [greedy([*PROMPT, 20 + i], 60) for i in range(4)]


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


async def test_followers_of_an_unreadable_record_get_an_error_and_others_continue(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, stub):
        requests = [request_for(PROMPT, max_new_tokens=count) for count in (450, LONG)]
        readers = [await begin(system.stub, request) for request in requests]
        going_on, append = asyncio.Event(), system.store.append

        async def waiting(*arguments: Any) -> Any:
            await going_on.wait()
            return await append(*arguments)

        monkeypatch.setattr(system.store, "append", waiting)
        damaged, followed = [attach(stub, request.request_id) for request in requests]
        for reader in (damaged, followed):
            assert await reader.read()
        key = tokens_key(requests[0].request_id)
        async with Redis.from_url(redis_url) as redis:
            await redis.setrange(
                key, 440 * TOKEN_WIDTH, "no token"
            )  # beyond the tokens that are written so far
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(damaged.finish(), 60)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert not other.running.done(), "the gateway continues"
        going_on.set()
        assert await followed.finish() == greedy(PROMPT, LONG)
        assert await readers[1].finish() == greedy(PROMPT, LONG)
        readers[0].call.cancel()
