"""Bad input gets a status that names field and value, and does not affect other requests."""

import asyncio
from typing import Any

import grpc
import pytest

from specinfer.v1 import generation_pb2
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, System, request_for, running_system, until

PROMPT = [5, 17, 3]
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
Chat = generation_pb2.ChatMessages


async def refusal(system: System, prompt: list[int], **fields: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await system.generate(prompt, **fields)
    return caught.value


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty text": ({"text": ""}, "prompt = '': must not be empty"),
    "no prompt": ({"text": "", "prompt_absent": True}, "prompt = None: needs text, chat or tokens"),
    "no messages": ({"chat": Chat()}, "chat.messages = []: must not be empty"),
    "over the context": (
        {"max_new_tokens": 600},
        "prompt + max_new_tokens = '3 + 600': over the context",
    ),
    "foreign token": ({"prompt": [5, 97]}, "prompt = 97: must be a token id from 0 to 96"),
    "foreign stop token": ({"stop_token_ids": [4000]}, "stop_token_ids = 4000"),
    "NaN temperature": ({"temperature": float("nan")}, "temperature = nan: must be a finite number >= 0"),
    "negative temperature": ({"temperature": -1.0}, "temperature = -1.0"),
    "top_p zero": ({"top_p": 0.0}, "top_p = 0.0: must be in (0, 1]"),
    "top_p above one": ({"top_p": 1.5}, "top_p = 1.5"),
    "negative new tokens": ({"max_new_tokens": -3}, "max_new_tokens = -3"),
    "17 stop strings": ({"stop_strings": ["x"] * 17}, "stop_strings = 17 entries: at most 16"),
    "empty stop string": ({"stop_strings": ["a", ""]}, "stop_strings = ''"),
    "unknown speculation": ({"speculation": 9}, "speculation = 9"),
    "long id": ({"request_id": "x" * 300}, "longer than 256 characters"),
}


async def test_errors_name_bad_fields_and_other_requests_continue(redis_url: str) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(1))}) as system:
        busy = asyncio.create_task(system.tokens([9, 8, 7], max_new_tokens=64))
        for name, (fields, message) in BAD.items():
            fields = dict(fields)
            prompt = fields.pop("prompt", PROMPT)
            if fields.pop("prompt_absent", False):
                request = request_for(PROMPT)
                request.ClearField("prompt")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    _ = [reply async for reply in system.stub.Generate(request)]
                error = caught.value
            else:
                error = await refusal(system, prompt, **fields)
            assert (error.code(), message in (error.details() or "")) == (INVALID, True), (
                name,
                error.details(),
            )
        assert await busy == greedy([9, 8, 7], 64)
        assert system.loop.scheduler.running == 0


async def test_duplicate_and_unknown_request_ids(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        await system.generate(PROMPT, request_id="twice")
        error = await refusal(system, [*PROMPT, 7], request_id="twice")
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "request_id = 'twice': used for another request" in (error.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await system.stub.Cancel(generation_pb2.CancelRequest(request_id="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "request_id = 'nobody'" in (caught.value.details() or "")


async def test_message_over_the_size_limit(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        error = await refusal(system, [], text="x" * (17 * 1024 * 1024))
        assert error.code() is EXHAUSTED
        assert "larger than max" in (error.details() or "")
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)


async def test_a_full_queue_refuses_with_a_hint(redis_url: str) -> None:
    async with running_system(redis_url, max_batch=1, max_waiting=1) as system:
        release = system.hold()
        running = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=100))
        await until(lambda: system.loop.scheduler.running == 1)
        waiting = asyncio.create_task(system.tokens(PROMPT))
        await until(lambda: system.loop.scheduler.waiting == 1)
        error = await refusal(system, PROMPT, request_id="refused")
        assert error.code() is EXHAUSTED
        assert "queue full: 1 requests are waiting" in (error.details() or "")
        hint = {str(key): value for key, value in error.trailing_metadata() or ()}
        assert int(hint["grpc-retry-pushback-ms"]) > 0
        release.set()
        assert len(await running) == 100
        assert await waiting == greedy(PROMPT, 16)
        assert await system.tokens(PROMPT, request_id="refused") == greedy(PROMPT, 16)


async def test_a_request_larger_than_the_cache_is_refused_at_once(redis_url: str) -> None:
    async with running_system(redis_url, max_batch=4, kv_tokens=64) as system:
        error = await refusal(system, PROMPT, max_new_tokens=100)
        assert error.code() is INVALID, "trying again would not help"
        assert "over the cache of 64 tokens" in (error.details() or "")


@pytest.mark.parametrize(
    ("request_id", "reason"),
    [("x" * 2**20, "longer than 256 characters"), ("a\nb", "must be printable")],
    ids=["long", "unprintable"],
)
async def test_bad_ids_are_refused_by_attach_and_cancel(redis_url: str, request_id: str, reason: str) -> None:
    """An error quotes the id in a header, where a long one would not fit."""
    async with running_system(redis_url) as system:
        with pytest.raises(grpc.aio.AioRpcError) as attaching:
            await system.stub.Attach(generation_pb2.AttachRequest(request_id=request_id)).read()
        with pytest.raises(grpc.aio.AioRpcError) as cancelling:
            await system.stub.Cancel(generation_pb2.CancelRequest(request_id=request_id))
    for caught in (attaching, cancelling):
        assert caught.value.code() is INVALID
        assert reason in (caught.value.details() or "")
