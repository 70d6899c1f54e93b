"""API keys at a whole gateway: callers use only their own requests, and quotas limit them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from specinfer.service.api_keys import make_key, write_keys
from specinfer.v1 import generation_pb2
from tests.support.oracle import greedy
from tests.support.system import System, request_for, running_system, until

PROMPT = [5, 17, 3, 88, 41]
Metadata = tuple[tuple[str, str], ...]


@asynccontextmanager
async def guarded(
    redis_url: str, directory: Path, **options: Any
) -> AsyncIterator[tuple[System, Metadata, Metadata]]:
    """Run a system with two callers; yield it and the metadata of each caller's calls."""
    file = directory / "keys"
    alice, first = make_key("alice", max_concurrent=3, max_priority=5)
    bob, second = make_key("bob")
    write_keys(file, [first, second])
    async with running_system(redis_url, api_keys=str(file), **options) as system:
        yield system, _bearer(alice), _bearer(bob)


def _bearer(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)


async def tokens(system: System, metadata: Metadata, **fields: Any) -> list[int]:
    call = system.stub.Generate(request_for(PROMPT, **fields), metadata=metadata)
    return [token async for reply in call for token in reply.token_ids]


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return caught.value.code()


async def test_every_call_needs_a_key(redis_url: str, tmp_path: Path) -> None:
    async with guarded(redis_url, tmp_path) as (system, alice, _):
        stub = system.stub
        for call in (
            stub.Generate(request_for(PROMPT)),
            stub.Attach(generation_pb2.AttachRequest(request_id="a")),
            stub.Cancel(generation_pb2.CancelRequest(request_id="a")),
            stub.Status(generation_pb2.StatusRequest()),
        ):
            assert await refused(call) is grpc.StatusCode.UNAUTHENTICATED
        assert await tokens(system, alice) == greedy(PROMPT, 16)
        assert (await stub.Status(generation_pb2.StatusRequest(), metadata=alice)).running == 0


async def test_requests_are_seen_and_cancelled_by_their_own_caller_only(
    redis_url: str, tmp_path: Path
) -> None:
    async with guarded(redis_url, tmp_path, linger_seconds=5.0) as (system, alice, bob):
        stub = system.stub
        call = stub.Generate(request_for(PROMPT, max_new_tokens=400, request_id="mine"), metadata=alice)
        await call.read()
        attach = generation_pb2.AttachRequest(request_id="mine")
        cancel = generation_pb2.CancelRequest(request_id="mine")
        assert await refused(stub.Attach(attach, metadata=bob)) is grpc.StatusCode.NOT_FOUND
        assert await refused(stub.Cancel(cancel, metadata=bob)) is grpc.StatusCode.NOT_FOUND
        same = stub.Generate(request_for(PROMPT, max_new_tokens=400, request_id="mine"), metadata=bob)
        assert await refused(same) is grpc.StatusCode.ALREADY_EXISTS
        assert system.loop.scheduler.running == 1
        await stub.Cancel(cancel, metadata=alice)
        await until(lambda: system.loop.scheduler.running == 0)
        last = [reply async for reply in stub.Attach(attach, metadata=alice)][-1]
        assert last.summary.finish_reason == generation_pb2.FINISH_REASON_CANCELLED


async def test_quotas_and_priorities_are_the_keys(redis_url: str, tmp_path: Path) -> None:
    async with guarded(redis_url, tmp_path, max_batch=1) as (system, alice, bob):
        release = system.hold()
        running = [asyncio.create_task(tokens(system, alice, max_new_tokens=60)) for _ in range(3)]
        await until(lambda: system.loop.scheduler.waiting == 2)
        over = system.stub.Generate(request_for(PROMPT), metadata=alice)
        assert await refused(over) is grpc.StatusCode.RESOURCE_EXHAUSTED
        other = asyncio.create_task(tokens(system, bob))
        await until(lambda: system.loop.scheduler.waiting == 3)
        release.set()
        assert await other == greedy(PROMPT, 16), "alice's quota does not affect bob"
        assert not all(task.done() for task in running), "bob had nothing running, so he was next"
        assert [await task for task in running] == [greedy(PROMPT, 60)] * 3
        high = system.stub.Generate(request_for(PROMPT, priority=6), metadata=alice)
        assert await refused(high) is grpc.StatusCode.PERMISSION_DENIED
        assert await tokens(system, alice, priority=5) == greedy(PROMPT, 16)


@pytest.mark.parametrize(("scope", "shared"), [("all", 32), ("key", 0)])
async def test_callers_share_cached_prompts_unless_scopes_are_keys(
    redis_url: str, tmp_path: Path, scope: str, shared: int
) -> None:
    """The scope is kept when the verifier has dropped a request and reads it again."""
    prompt = [3 + place % 90 for place in range(40)]
    async with guarded(redis_url, tmp_path, prefix_scope=scope) as (system, alice, bob):

        async def cached(metadata: Metadata) -> int:
            call = system.stub.Generate(request_for(prompt, max_new_tokens=8), metadata=metadata)
            return [reply async for reply in call][-1].summary.cached_tokens

        assert await cached(alice) == 0
        assert await cached(alice) == 32
        assert await cached(bob) == shared
        assert await cached(bob) == 32
        system.forget_every(3)
        assert await cached(alice) == 32


async def test_salted_prompts_are_found_only_with_their_salt(redis_url: str, tmp_path: Path) -> None:
    prompt = [3 + place % 90 for place in range(40)]
    async with guarded(redis_url, tmp_path) as (system, alice, bob):

        async def cached(metadata: Metadata, salt: str) -> int:
            message = request_for(prompt, max_new_tokens=8)
            message.cache_salt = salt
            call = system.stub.Generate(message, metadata=metadata)
            return [reply async for reply in call][-1].summary.cached_tokens

        found = [await cached(alice, salt) for salt in ("a", "a", "b", "", "b")]
        assert found == [0, 32, 0, 0, 32]
        assert await cached(bob, "a") == 32
