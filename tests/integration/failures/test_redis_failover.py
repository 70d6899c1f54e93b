"""Redis fails over to another server with the same name; the old primary becomes read-only.

Every command that the old primary refuses is repeated with a new connection.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import grpc
import pytest

from gateway.api.callers import ANYBODY
from gateway.store.connection import RedisConnection
from gateway.store.protocol import GatewayReport
from gateway.store.records import Known
from specinfer.errors import UnavailableError
from specinfer.scheduling.entries import Progress
from specinfer.v1 import generation_pb2_grpc
from tests.integration.failures.test_gateways import LONG, PROMPT, begin, two_gateways
from tests.integration.failures.test_returning_clients import attach
from tests.integration.stores.test_redis_store import Pair, connected, state_of
from tests.support.network.redis_pair import RedisPair, redis_pair_fixture  # noqa: F401  # the fixture
from tests.support.oracle import greedy
from tests.support.system import request_for

Command = Callable[[Pair, str], Awaitable[Any]]
WRITES: dict[str, Command] = {
    "renew": lambda pair, _: pair.a.renew(GatewayReport(pair.a.gateway_id), []),
    "claim": lambda pair, _: pair.a.claim("verifier"),
    "create": lambda pair, _: pair.a.create(state_of([]).request, "idempotency_key", ANYBODY, owned=True),
    "append": lambda pair, name: pair.a.append([_progress(name)], [], "model"),
    "adopt": lambda pair, _: pair.a.adopt(10, ["model"]),
    "cancel": lambda pair, name: pair.a.cancel(name, None),
    "listen": lambda pair, name: pair.a.listen(name),
    "disown": lambda pair, name: pair.a.disown({name: 1}),
}
READS: dict[str, Command] = {
    "load": lambda pair, name: pair.a.load(name),
    "glimpse": lambda pair, name: pair.a.glimpse({name: Known(0)}),
    "owned": lambda pair, _: pair.a.owned(),
}


def _progress(name: str) -> Progress:
    state = state_of([5])
    object.__setattr__(state.request, "request_id", name)
    return Progress(state, [5], [], 0, False)


async def _prepared(pair: RedisPair, connection: RedisConnection) -> tuple[Pair, str]:
    """Return the stores of two gateways and a request's id, with several open connections."""
    stores = Pair(connection)
    name = await stores.begin(state_of([]))
    free = state_of([]).request
    await stores.b.create(free, "idempotency_key", ANYBODY, owned=False)
    await asyncio.gather(*(stores.a.load(name) for _ in range(8)))
    return stores, name


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_that_a_former_primary_refuses_is_done_by_the_new_one(
    redis_pair: RedisPair, name: str
) -> None:
    async with connected(redis_pair.url) as connection:
        stores, request = await _prepared(redis_pair, connection)
        await redis_pair.fail_over()
        old = connection.redis
        await WRITES[name](stores, request)
        assert connection.redis is not old
        assert await stores.a.load(request) is not None


async def test_reads_follow_as_soon_as_any_write_was_refused(redis_pair: RedisPair) -> None:
    async with connected(redis_pair.url) as connection:
        stores, request = await _prepared(redis_pair, connection)
        await redis_pair.fail_over()
        await WRITES["renew"](stores, request)
        async with redis_pair.server(0) as first:
            before = int((await first.info("commandstats"))["cmdstat_hmget"]["calls"])
            for read in READS.values():
                await asyncio.gather(*(read(stores, request) for _ in range(8)))
            assert int((await first.info("commandstats"))["cmdstat_hmget"]["calls"]) == before


@pytest.mark.parametrize("name", READS)
async def test_a_read_that_a_cut_off_replica_refuses_is_answered_by_the_new_primary(
    redis_pair: RedisPair, name: str
) -> None:
    """It has lost its primary, and answers MASTERDOWN."""
    async with connected(redis_pair.url) as connection:
        stores, request = await _prepared(redis_pair, connection)
        await redis_pair.fail_over()
        async with redis_pair.server(0) as first:
            await first.config_set("replica-serve-stale-data", "no")
            await first.execute_command("REPLICAOF", "127.0.0.1", 1)  # a port without a server
            assert await READS[name](stores, request)
            await first.execute_command("REPLICAOF", "NO", "ONE")


async def test_a_command_to_a_server_that_loads_is_repeated_with_a_new_connection() -> None:
    """It may be the old primary after a restart; a new connection reaches the new one."""
    seen = 0

    async def load(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        with closing(writer):
            while await reader.read(1000):
                writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" * 4)

    listener = await asyncio.start_server(load, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, connected(f"redis://127.0.0.1:{port}/0") as connection:
        with pytest.raises(UnavailableError, match="loading"):
            await connection.check()
        assert seen == 2, "repeated once, with another connection"


async def test_streams_continue_through_a_failover(redis_pair: RedisPair) -> None:
    """This holds at the gateway that runs a request and at one that only follows it."""
    async with two_gateways(redis_pair.url, linger_seconds=5.0) as (system, _, stub):
        request = request_for(PROMPT, max_new_tokens=LONG)
        reader = await begin(system.stub, request)
        following = attach(stub, request.request_id)
        assert await following.read()
        await redis_pair.fail_over()
        async with asyncio.timeout(30):
            assert await reader.finish() == greedy(PROMPT, LONG)
            assert await following.finish() == greedy(PROMPT, LONG)
            for gateway in (system.stub, stub):
                assert await _answered(gateway) == greedy(PROMPT, 8)


async def _answered(stub: "generation_pb2_grpc.GenerationServiceAsyncStub") -> list[int]:
    """Return the tokens of a new request; retry until the gateway has renewed its lease."""
    while True:
        request = request_for(PROMPT, max_new_tokens=8, request_id=secrets.token_hex(6))
        try:
            return [token async for reply in stub.Generate(request) for token in reply.token_ids]
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
        await asyncio.sleep(0.05)
