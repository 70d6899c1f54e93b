"""Requests survive the death, sleep and end of gateways that share a Redis.

Every answer must have the tokens of an undisturbed run.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from gateway.app import Gateway
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.redis_server import redis_command
from specinfer.errors import FencedError
from specinfer.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from tests.support.oracle import first, greedy
from tests.support.system import (
    ScriptedDrafter,
    System,
    another_gateway,
    crash,
    refused,
    request_for,
    running_system,
    text_of,
    until,
)

PROMPT = [5, 17, 3, 88, 41]
LONG = 120
Stub = generation_pb2_grpc.GenerationStub


@asynccontextmanager
async def two_gateways(
    redis_url: str, **options: Any
) -> AsyncIterator[tuple[System, Gateway, generation_pb2_grpc.GenerationStub]]:
    """Run two gateways; the first one drives the only verifier."""
    drafters = {"a": ScriptedDrafter(first(1))}
    async with (
        running_system(redis_url, drafters, lease_s=0.6, **options) as system,
        another_gateway(system.gateway.settings) as (other, stub, _),
    ):
        yield system, other, stub


def running(*gateways: Gateway) -> int:
    """Return the number of running requests; the verifier may have changed its gateway."""
    return sum(session.loop.scheduler.running for gateway in gateways for session in gateway.sessions)


async def rest(stub: Stub, request_id: str, from_token: int) -> list[generation_pb2.GenerateReply]:
    """Return all replies of an `Attach` call."""
    request = generation_pb2.AttachRequest(request_id=request_id, from_token=from_token)
    return [reply async for reply in stub.Attach(request)]


def tokens_of(replies: Sequence[generation_pb2.GenerateReply]) -> list[int]:
    position = replies[0].position
    for reply in replies:
        assert reply.position == position
        position += len(reply.token_ids)
    return [token for reply in replies for token in reply.token_ids]


@dataclass(slots=True)
class Reader:
    """Call, and the tokens and text read from it."""

    call: Any
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    last: generation_pb2.GenerateReply | None = None

    async def read(self) -> bool:
        """Read a reply; return False at the end."""
        reply = await self.call.read()
        if reply is grpc.aio.EOF:
            return False
        assert reply.position == len(self.tokens)
        self.tokens += list(reply.token_ids)
        self.text += reply.text
        self.last = reply
        return True

    async def finish(self) -> list[int]:
        """Read to the end, and return all tokens."""
        while await self.read():
            pass
        return self.tokens


async def begin(stub: Stub, request: generation_pb2.GenerateRequest, count: int = 10) -> Reader:
    """Start a request, and read at least `least` tokens."""
    reader = Reader(stub.Generate(request))
    while len(reader.tokens) < count:
        assert await reader.read()
    return reader


async def test_a_stream_continues_where_it_was_cut(redis_url: str) -> None:
    async with running_system(redis_url, linger_seconds=5.0) as system:
        request = request_for(PROMPT, max_new_tokens=LONG, stop_strings=["no such text"], logprobs=True)
        reader = await begin(system.stub, request)
        reader.call.cancel()
        seen = reader.tokens
        replies = await rest(system.stub, request.request_id, len(seen))
        again = await rest(system.stub, request.request_id, LONG - 3)
        whole = [r async for r in system.stub.Generate(request)]
    assert replies[0].position == len(seen)
    assert seen + tokens_of(replies) == greedy(PROMPT, LONG)
    assert replies[-1].summary.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert reader.text + "".join(r.text for r in replies) == "".join(r.text for r in whole)
    assert tokens_of(again) == greedy(PROMPT, LONG)[-3:]
    assert tokens_of(whole) == greedy(PROMPT, LONG), "the same request does not run again"
    logprobs = [value for r in whole for value in r.logprobs]
    assert len(logprobs) == LONG
    assert [value for r in replies for value in r.logprobs] == pytest.approx(logprobs[len(seen) :])


async def test_attaching_to_unknown_requests_or_beyond_the_end_is_an_error(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        with refused(grpc.StatusCode.NOT_FOUND):
            await rest(system.stub, "nobody", 0)
        await system.generate(PROMPT, request_id="short")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "from_token = 17"):
            await rest(system.stub, "short", 17)


LETTERS = common_pb2.Constraint(regex="([a-f]g|[h-p]){200}")


async def test_another_gateway_continues_when_one_dies(redis_url: str) -> None:
    sampling: dict[str, Any] = {"temperature": 0.8, "seed": 7, "constraint": LETTERS}
    async with two_gateways(redis_url, linger_seconds=5.0) as (system, other, stub):
        names = [f"r{number}" for number in range(4)]
        prompts = [[*PROMPT, 20 + number] for number in range(4)]
        plain = [await system.tokens(prompt, max_new_tokens=LONG, **sampling) for prompt in prompts]

        def waits() -> bool:
            """Wait until all are submitted, and again when all have eight tokens."""
            return any(name not in system.loop.scheduler.states for name in names) or all(
                system.generated(name) >= 8 for name in names
            )

        system.hold(waits)
        requests = [
            request_for(prompt, max_new_tokens=LONG, request_id=name, **sampling)
            for prompt, name in zip(prompts, names, strict=True)
        ]
        begun = await asyncio.gather(*(begin(system.stub, request, 4) for request in requests))
        await crash(system.gateway)
        for reader in begun:
            with pytest.raises(grpc.aio.AioRpcError):  # after the replies that were sent before
                await reader.finish()
        rests = await asyncio.gather(
            *(rest(stub, name, len(reader.tokens)) for name, reader in zip(names, begun, strict=True))
        )
        whole = [reader.tokens + tokens_of(replies) for reader, replies in zip(begun, rests, strict=True)]
        assert whole == plain
        assert re.fullmatch("([a-f]g|[h-p])+[a-f]?", text_of(whole[0]))
        assert len(other.sessions) == 1
        status = await stub.Status(generation_pb2.StatusRequest())
        assert status.gateways == 1
        system.gateway = other  # which `running_system` checks, as the first one has ended


async def test_a_gateway_that_slept_changes_nothing_and_its_streams_continue(redis_url: str) -> None:
    """It sleeps longer than its lease, in a step; then it sends the step before it renews."""
    async with two_gateways(redis_url) as (system, other, _):
        loop, fenced = system.loop, []
        request = request_for(PROMPT, max_new_tokens=LONG, request_id="r")
        verify, go_on, asleep = loop.verifier.verify, asyncio.Event(), asyncio.Event()

        async def late(*arguments: Any) -> Any:
            if loop.scheduler.states["r"].new_tokens < 20:
                return await verify(*arguments)
            asleep.set()
            await go_on.wait()
            try:
                return await verify(*arguments)
            except FencedError as error:
                fenced.append(error)
                raise

        loop.verifier.verify = late  # type: ignore[method-assign]
        reader = await begin(system.stub, request)
        await asleep.wait()
        renew = system.gateway.lease_manager._renew_once
        renewing = asyncio.Event()
        system.gateway.lease_manager._renew_once = renewing.wait  # type: ignore[method-assign, assignment]
        await until(lambda: any(session.loop.steps for session in other.sessions))
        go_on.set()
        await until(lambda: len(fenced) == 1)  # the verifier refused it
        system.gateway.lease_manager._renew_once = renew  # type: ignore[method-assign]
        renewing.set()
        assert await reader.finish() == greedy(PROMPT, LONG)
        assert len(fenced) == 1
        await until(lambda: not len(system.gateway.sessions))
        system.gateway = other


async def test_a_redis_that_lost_its_data_is_filled_again(redis_url: str) -> None:
    async with running_system(redis_url, lease_s=0.6, max_batch=1, linger_seconds=5.0) as system:
        running = request_for(PROMPT, max_new_tokens=LONG)
        waiting = request_for(PROMPT[::-1], max_new_tokens=20)
        reader = await begin(system.stub, running)
        release = system.hold()
        later = asyncio.create_task(read_all(system.stub, waiting))
        await until(lambda: system.loop.scheduler.waiting == 1)
        async with Redis.from_url(redis_url) as redis:
            await redis.flushall()
        release.set()
        assert await reader.finish() == greedy(PROMPT, LONG)
        assert tokens_of(await later) == greedy(PROMPT[::-1], 20)
        record = await system.store.load(running.request_id)
        assert record is not None
        assert record.tokens == greedy(PROMPT, LONG)
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16), "the verifier's lease is back, too"


async def test_an_outage_of_redis_stops_no_request(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    command = [*redis_command(port, tmp_path), "--appendonly", "yes", "--appendfsync", "always"]
    redis = await _started(command, port)
    async with running_system(f"redis://127.0.0.1:{port}/0", lease_s=0.6, linger_seconds=9.0) as system:
        reader = await begin(system.stub, request_for(PROMPT, max_new_tokens=LONG))
        await _killed(redis)
        await until(lambda: not system.gateway.lease_manager.redis_ready)
        assert not system.gateway.lease_manager.ready
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await system.tokens(PROMPT)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        hints = {str(key): value for key, value in refused.value.trailing_metadata() or ()}
        assert int(hints["grpc-retry-pushback-ms"]) > 0
        redis = await _started(command, port)
        assert await reader.finish() == greedy(PROMPT, LONG)
        await until(lambda: system.gateway.lease_manager.redis_ready)
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
    await _killed(redis)


async def _started(command: Sequence[str], port: int) -> asyncio.subprocess.Process:
    """Start a Redis, and wait until it listens; without a fork, as gRPC's threads run."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return process
            await asyncio.sleep(0.02)


async def _killed(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def test_two_gateways_share_two_verifiers(redis_url: str) -> None:
    async with (
        running_system(redis_url, verifiers=2, lease_s=2.0) as system,
        another_gateway(system.gateway.settings) as (other, stub, _),
    ):
        assert (len(system.gateway.sessions), len(other.sessions)) == (2, 0), (
            "no gateway takes the verifier of another"
        )
        for session in list(system.gateway.sessions)[1:]:
            await system.gateway.sessions.end(session)
        await until(lambda: len(other.sessions) == 1)
        assert len(system.gateway.sessions) == 1, "each gateway has half of the verifiers"
        (session,) = other.sessions
        right = [greedy([*PROMPT, 20 + i], LONG) for i in range(3)]
        for _ in range(20):  # a batch may end before the second gateway looks for waiting requests
            many = [request_for([*PROMPT, 20 + i % 3], max_new_tokens=LONG) for i in range(24)]
            texts = await asyncio.gather(*(read_all(system.stub, request) for request in many))
            assert [tokens_of(replies) for replies in texts] == right * 8
            if session.loop.steps:
                break
        assert session.loop.steps > 0, "waiting requests of the first ran at the second"
        assert tokens_of(await read_all(stub, request_for(PROMPT, max_new_tokens=9))) == greedy(PROMPT, 9)


async def read_all(stub: Stub, request: generation_pb2.GenerateRequest) -> list[generation_pb2.GenerateReply]:
    return [reply async for reply in stub.Generate(request)]
