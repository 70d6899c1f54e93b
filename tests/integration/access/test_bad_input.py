"""Bad input gets a status that names field and value, and does not affect other requests."""

import asyncio
from typing import Any

import grpc
import pytest

from specinfer.v1 import generation_pb2
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, refused, running_system, until

PROMPT = [5, 17, 3]
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_errors_name_bad_fields_and_other_requests_continue(redis_url: str) -> None:
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"text": ""}, "prompt = '': must not be empty"),
        ({"tokens": None}, "prompt = None: needs text, chat, tokens or infill"),
        ({"max_new_tokens": 600}, "prompt + max_new_tokens = '3 + 600': over the context"),
        ({"temperature": float("nan")}, "temperature = nan: must be a finite number >= 0"),
        ({"stop_strings": ["a", ""]}, "stop_strings = ''"),
    )
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        busy = asyncio.create_task(system.tokens([9, 8, 7], max_new_tokens=64))
        for fields, message in bad:
            with refused(INVALID, message):
                await system.generate(PROMPT, **fields)
        assert await busy == greedy([9, 8, 7], 64)
        assert system.loop.scheduler.running == 0


async def test_duplicate_and_unknown_request_ids(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        await system.generate(PROMPT, request_id="twice")
        with refused(grpc.StatusCode.ALREADY_EXISTS, "request_id = 'twice': used for another request"):
            await system.generate([*PROMPT, 7], request_id="twice")
        with refused(grpc.StatusCode.NOT_FOUND, "request_id = 'nobody'"):
            await system.stub.Cancel(generation_pb2.CancelRequest(request_id="nobody"))


async def test_message_over_the_size_limit(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        with refused(EXHAUSTED, "larger than max"):
            await system.generate([], text="x" * (17 * 1024 * 1024))
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)


async def test_a_full_queue_refuses_with_a_hint(redis_url: str) -> None:
    async with running_system(redis_url, max_batch=1, max_waiting=1) as system:
        release = system.hold()
        running = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=100))
        await until(lambda: system.loop.scheduler.running == 1)
        waiting = asyncio.create_task(system.tokens(PROMPT))
        await until(lambda: system.loop.scheduler.waiting == 1)
        with pytest.raises(grpc.aio.AioRpcError, match="queue full: 1 requests are waiting") as caught:
            await system.generate(PROMPT, request_id="refused")
        assert caught.value.code() is EXHAUSTED
        hint = {str(key): value for key, value in caught.value.trailing_metadata() or ()}
        assert int(hint["grpc-retry-pushback-ms"]) > 0
        release.set()
        assert len(await running) == 100
        assert await waiting == greedy(PROMPT, 16)
        assert await system.tokens(PROMPT, request_id="refused") == greedy(PROMPT, 16)


async def test_a_request_larger_than_the_cache_is_refused_at_once(redis_url: str) -> None:
    async with running_system(redis_url, max_batch=4, kv_tokens=64) as system:
        with refused(INVALID, "over the cache of 64 tokens"):  # trying again would not help
            await system.generate(PROMPT, max_new_tokens=100)


@pytest.mark.parametrize(
    ("request_id", "reason"),
    [("x" * 2**20, "longer than 256 characters"), ("a\nb", "must be printable")],
    ids=["long", "unprintable"],
)
async def test_bad_ids_are_refused_by_attach_and_cancel(redis_url: str, request_id: str, reason: str) -> None:
    """An error quotes the id in a header, where a long one would not fit."""
    async with running_system(redis_url) as system:
        with refused(INVALID, reason):
            await system.stub.Attach(generation_pb2.AttachRequest(request_id=request_id)).read()
        with refused(INVALID, reason):
            await system.stub.Cancel(generation_pb2.CancelRequest(request_id=request_id))
