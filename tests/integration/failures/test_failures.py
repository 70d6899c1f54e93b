"""A verifier, Redis or a pass fails: the errors, the log, and what continues."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.cli.local.redis_server import redis_command
from specinfer.drafters import DraftJob
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2
from tests.support.oracle import always, greedy
from tests.support.system import ScriptedDrafter, refused, request_for, running_system, until

PROMPT = [5, 17, 3, 88, 41]


async def test_requests_end_with_an_error_if_the_verifier_stays_unavailable(redis_url: str) -> None:
    async with running_system(redis_url, patience_s=0.3) as system:
        await system.servers["verifier"].stop()
        with refused(grpc.StatusCode.UNAVAILABLE, "verifier"):
            await system.generate(PROMPT)
        status = await system.stub.Status(generation_pb2.StatusRequest())
        assert (status.verifier_ready, status.running) == (False, 0)


async def test_a_redis_that_dies_ends_requests_and_shows_no_token_it_lost(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    redis = Child("redis", redis_command(port, tmp_path), tmp_path / "redis.log", {})
    wait_for_port(redis, f"127.0.0.1:{port}", timeout_s=60)
    async with running_system(f"redis://127.0.0.1:{port}/0", redis_patience_seconds=2.0) as system:
        request = request_for(PROMPT, max_new_tokens=450)
        call = system.stub.Generate(request)
        seen = list((await call.read()).token_ids)
        redis.kill()
        with refused(grpc.StatusCode.UNAVAILABLE, "Redis does not answer"):
            await _read_into(seen, call)
        assert seen == greedy(PROMPT, 450)[: len(seen)]
        await until(lambda: system.verifier.cached_requests == 0)
        assert system.loop.scheduler.running == 0
        with pytest.raises(grpc.aio.AioRpcError, match="Redis"):
            await system.generate(PROMPT)


async def _read_into(seen: list[int], call: Any) -> None:
    while (reply := await call.read()) is not grpc.aio.EOF:
        seen += reply.token_ids


async def test_health_answers_while_the_engine_computes(redis_url: str) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    hold, entered = threading.Event(), threading.Event()

    def slow(job: DraftJob) -> TokenTree:
        entered.set()
        hold.wait(120)
        return always(job)

    async with running_system(redis_url, {"slow": ScriptedDrafter(slow)}) as system:
        task = asyncio.create_task(system.tokens(PROMPT, max_new_tokens=4))
        await until(entered.is_set)
        async with grpc.aio.insecure_channel(system.loop.pool.services[0].address) as channel:
            for service in ("", "specinfer.v1.Speculator"):
                reply = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=service), timeout=60
                )
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
        assert not task.done()
        hold.set()
        assert await task == greedy(PROMPT, 4)


async def test_reflection_lists_the_services(redis_url: str) -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with (
        running_system(redis_url) as system,
        grpc.aio.insecure_channel(system.address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        reply = await call.read()
        call.cancel()
    names = {service.name for service in reply.list_services_response.service}
    assert {"specinfer.v1.Generation", "grpc.health.v1.Health"} <= names
