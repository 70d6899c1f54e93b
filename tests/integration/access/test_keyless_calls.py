"""Calls that cost a client nothing, such as calls without a key, do not use up the server's places."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.api.entrance import STREAMS_PER_REQUEST
from specinfer.service import faults
from specinfer.service.api_keys import make_key, write_keys
from specinfer.service.channel import open_channel
from specinfer.v1 import generation_pb2
from tests.support.system import request_for, running_system

PROMPT = [5, 17, 3, 88, 41]
CALLS = 16


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


async def code_of(call: Any) -> grpc.StatusCode | None:
    """Read once from a stream; return the status code if that fails, else None."""
    try:
        async with asyncio.timeout(60):
            await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def silent() -> AsyncIterator[Any]:
    """Never send a message."""
    await asyncio.Event().wait()
    yield b""


async def asking() -> AsyncIterator[Any]:
    """Send one message, and keep the stream open."""
    yield reflection_pb2.ServerReflectionRequest(list_services="")
    await asyncio.Event().wait()


async def test_calls_without_a_key_leave_room_for_callers(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health and reflection get an eighth of all calls each. A call without a key ends at its headers."""
    key, entry = make_key("alice")
    write_keys(tmp_path / "keys", [entry])
    async with (
        running_system(redis_url, api_keys=str(tmp_path / "keys"), max_calls=CALLS) as system,
        open_channel(system.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        generate = channel.stream_stream("/specinfer.v1.Generation/Generate")
        full = grpc.StatusCode.RESOURCE_EXHAUSTED
        calls = [watch(health_pb2.HealthCheckRequest()) for _ in range(CALLS)]
        codes = [await code_of(call) for call in calls]
        assert (codes.count(None), codes.count(full)) == (2, CALLS - 2)
        more = [reflect(asking()) for _ in range(CALLS)]
        assert [await code_of(call) for call in more].count(None) == 2
        silent_calls = [generate(silent()) for _ in range(CALLS)]
        assert {await code_of(call) for call in silent_calls} == {grpc.StatusCode.UNAUTHENTICATED}
        honest = system.stub.Generate(request_for(PROMPT), metadata=bearer(key))
        assert [token async for reply in honest for token in reply.token_ids]
        for call in (*calls, *more, *silent_calls):
            call.cancel()
        assert await code_of(watch(health_pb2.HealthCheckRequest())) is None, "places come back"
        monkeypatch.setattr(faults, "MESSAGE_S", 0.2)
        for method in ("/grpc.health.v1.Health/Check", "/specinfer.v1.Generation/Status"):
            call = channel.stream_stream(method)
            slow = [call(silent(), metadata=bearer(key)) for _ in range(2)]
            assert {await code_of(slow_call) for slow_call in slow} == {grpc.StatusCode.INVALID_ARGUMENT}, (
                method
            )


async def test_streams_of_a_caller_are_counted(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller may read one request by a few streams at once, and must send its messages soon."""
    (evil, first), (good, second) = make_key("evil", max_concurrent=1), make_key("good")
    write_keys(tmp_path / "keys", [first, second])
    async with running_system(redis_url, api_keys=str(tmp_path / "keys"), max_calls=CALLS) as system:
        stub, mine = system.stub, generation_pb2.AttachRequest(request_id="mine")
        request = request_for(PROMPT, request_id="mine", max_new_tokens=400)
        begun = stub.Generate(request, metadata=bearer(evil))
        assert await code_of(begun) is None
        calls = [stub.Attach(mine, metadata=bearer(evil)) for _ in range(CALLS)]
        codes = [await code_of(call) for call in calls]
        assert codes.count(None) == STREAMS_PER_REQUEST - 1
        assert set(codes) == {None, grpc.StatusCode.RESOURCE_EXHAUSTED}
        honest = stub.Generate(request_for(PROMPT), metadata=bearer(good))
        assert [token async for reply in honest for token in reply.token_ids]
        for call in (begun, *calls):
            call.cancel()
        monkeypatch.setattr(faults, "MESSAGE_S", 0.2)
        async with open_channel(system.address) as channel:
            generate = channel.stream_stream("/specinfer.v1.Generation/Generate")
            code = await code_of(generate(silent(), metadata=bearer(good)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_compressed_message_is_refused_unpacked(redis_url: str) -> None:
    """gRPC checks sizes before it unpacks: a small message could fill the memory."""
    async with running_system(redis_url) as system:
        call = system.stub.Generate(
            generation_pb2.GenerateRequest(text="a" * 2**20), compression=grpc.Compression.Gzip
        )
        assert await code_of(call) is grpc.StatusCode.UNIMPLEMENTED
