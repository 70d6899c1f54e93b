"""Clients that leave, return, or read a request at several gateways at once."""

import asyncio
from typing import Any

import pytest

from gateway.api.callers import ANYBODY
from specinfer.errors import InvalidInputError
from specinfer.statuses import FinishReason
from specinfer.v1 import generation_pb2
from tests.integration.failures.test_gateways import LONG, PROMPT, Reader, begin, running, two_gateways
from tests.support.oracle import greedy
from tests.support.system import request_for, running_system, until


def attach(stub: Any, request_id: str, from_token: int = 0) -> Reader:
    """Continue a request from a position."""
    message = generation_pb2.AttachRequest(request_id=request_id, from_token=from_token)
    return Reader(stub.Attach(message), [0] * from_token)


async def test_a_request_whose_client_returns_to_a_following_gateway_is_not_cancelled(redis_url: str) -> None:
    async with two_gateways(redis_url, linger_seconds=60.0) as (system, other, stub):
        request = request_for(PROMPT, max_new_tokens=400)
        reader = await begin(stub, request)
        lingering = other.servicer._requests._lingering
        reader.call.cancel()
        await until(lambda: request.request_id in lingering)
        again = attach(stub, request.request_id)
        assert await again.read()
        assert not lingering, "nothing waits to cancel it"
        assert await again.finish() == greedy(PROMPT, 400)
        assert again.last is not None
        assert again.last.summary.finish_reason == generation_pb2.FINISH_REASON_LENGTH
        assert not running(system.gateway, other)


async def test_the_linger_time_counts_from_the_last_client_that_left(redis_url: str) -> None:
    async with running_system(redis_url, linger_seconds=60.0) as system:
        request, requests = request_for(PROMPT, max_new_tokens=400), system.gateway.servicer._requests
        reader = await begin(system.stub, request)
        go_on = system.hold()  # so that it does not end by itself
        token_stream = system.gateway.token_streams.get(request.request_id)
        assert token_stream is not None
        reader.call.cancel()
        await until(lambda: token_stream.readers == 0)
        first = requests._lingering[request.request_id]
        system.gateway.settings.__dict__["linger_seconds"] = 0.0
        with requests.reading(token_stream):
            pass  # a client returns and leaves
        assert requests._lingering[request.request_id] is not first
        await until(lambda: not requests._tasks)
        assert first.cancelled(), "the first linger task is cancelled"
        go_on.set()
        await until(lambda: token_stream.ending is not None)
        assert token_stream.ending is not None
        assert token_stream.ending.finish is FinishReason.CANCELLED


async def test_a_client_that_leaves_one_gateway_does_not_end_the_stream_at_another(redis_url: str) -> None:
    async with two_gateways(redis_url, linger_seconds=0.0) as (system, other, stub):
        request = request_for(PROMPT, max_new_tokens=400)
        reader = await begin(system.stub, request)
        second = attach(stub, request.request_id)
        assert await second.read()
        second.call.cancel()
        await until(lambda: not len(other.token_streams))
        assert await reader.finish() == greedy(PROMPT, 400)
        assert reader.last is not None
        assert reader.last.summary.finish_reason == generation_pb2.FINISH_REASON_LENGTH


async def test_a_failed_attach_leaves_nothing(redis_url: str) -> None:
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, _):
        request = request_for(PROMPT, max_new_tokens=LONG)
        reader = await begin(system.stub, request)
        with pytest.raises(InvalidInputError):
            await other.servicer._requests.attach(request.request_id, LONG + 1, ANYBODY)
        assert not len(other.token_streams)
        await reader.finish()


async def test_a_client_that_attaches_while_the_last_one_leaves_is_served(redis_url: str) -> None:
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, stub):
        request = request_for(PROMPT, max_new_tokens=400)
        reader = await begin(system.stub, request)
        first = attach(stub, request.request_id)
        assert await first.read()
        listen = other.store.listen

        async def slow(request_id: str) -> None:
            first.call.cancel()
            await until(lambda: not len(other.token_streams))
            await listen(request_id)

        other.store.listen = slow  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            assert await attach(stub, request.request_id).finish() == greedy(PROMPT, 400)
            await reader.finish()


async def test_a_client_that_hangs_up_while_it_is_recorded_leaves_for_good(redis_url: str) -> None:
    async with running_system(redis_url, linger_seconds=0.1) as system:
        request, store = request_for(PROMPT, max_new_tokens=500), system.store
        create, recorded = store.create, asyncio.Event()

        async def slow(*arguments: Any, **options: Any) -> bool:
            call.cancel()
            await asyncio.sleep(0.1)
            recorded.set()
            return await create(*arguments, **options)

        store.create = slow  # type: ignore[method-assign]
        call = system.stub.Generate(request)
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        await recorded.wait()
        record = await system.ended(request.request_id)
        await until(lambda: not running(system.gateway) and not len(system.gateway.token_streams))
        assert record.ending is not None
        assert record.ending.finish is FinishReason.CANCELLED


async def test_a_repeated_request_is_found_at_its_owner_though_redis_lost_it(redis_url: str) -> None:
    async with running_system(redis_url, linger_seconds=5.0) as system:
        request = request_for(PROMPT, max_new_tokens=LONG)
        reader = await begin(system.stub, request)
        append, go_on = system.store.append, asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            await go_on.wait()
            return await append(*arguments)

        system.store.append = slow  # type: ignore[method-assign]
        await system.store._connection.redis.flushall()
        again = Reader(system.stub.Generate(request))
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        assert await again.finish() == greedy(PROMPT, LONG)
        assert await reader.finish() == greedy(PROMPT, LONG)
