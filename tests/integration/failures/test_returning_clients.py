"""Clients that leave, return, or read a request at several gateways at once."""

import asyncio
from typing import Any

import pytest

from gateway.api.callers import ANYBODY
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.request import GenerationRequest
from specinfer.v1 import generation_pb2
from specinfer.wire.client_ids import request_id_of
from tests.integration.failures.test_gateways import PROMPT, Reader, begin, running, two_gateways
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, request_for, running_system, until


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


async def test_a_client_that_hangs_up_while_it_is_recorded_leaves_for_good(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        create, submit = system.store.create, system.gateway.servicer._requests.submit
        request = GenerationRequest("hung-up", tuple(PROMPT), 500, Sampling(temperature=0))

        async def too_late(*arguments: Any, **options: Any) -> bool:
            asking.cancel()
            await asyncio.wait([asking])
            return await create(*arguments, **options)

        system.store.create = too_late  # type: ignore[method-assign]
        asking = asyncio.create_task(submit(request, "key", ANYBODY))
        with pytest.raises(asyncio.CancelledError):
            await asking
        record = await system.ended(request.request_id)
        assert record.ending is not None
        assert record.ending.finish is FinishReason.CANCELLED


async def test_a_client_that_hangs_up_is_cancelled_at_the_next_iteration(redis_url: str) -> None:
    drafter = ScriptedDrafter(first(1))
    async with running_system(redis_url, {"a": drafter}) as system:
        request = request_for(PROMPT, max_new_tokens=400)
        call = system.stub.Generate(request)
        await call.read()
        call.cancel()
        await until(lambda: [request_id_of(name) for name in drafter.released] == [request.request_id])
        await until(lambda: system.verifier.cached_requests == system.loop.scheduler.running == 0)
        record = await system.ended(request.request_id)
        assert len(record.tokens) < 400
        assert record.ending is not None
        assert record.ending.finish is FinishReason.CANCELLED
