"""Gateways disown requests that cannot run, if the reports of others show room."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gateway.app import Gateway
from gateway.session.verifier import Verdicts
from gateway.store.leases import GatewayReport, Renewal
from specinfer.v1 import generation_pb2, generation_pb2_grpc
from tests.integration.failures.test_gateways import PROMPT, read_all, tokens_of
from tests.support.oracle import greedy
from tests.support.system import System, another_gateway, request_for, running_system, until


def count_disowned(gateways: Sequence[Gateway]) -> list[str]:
    """Return a list that gets the requests these gateways disown."""
    disowned: list[str] = []
    for gateway in gateways:
        disown = gateway.store.disown

        async def counted(
            names: Sequence[str], *arguments: Any, disown: Any = disown, **options: Any
        ) -> None:
            disowned.extend(names)
            await disown(names, *arguments, **options)

        gateway.store.disown = counted  # type: ignore[method-assign]
    return disowned


@asynccontextmanager
async def one_verifier_each(
    redis_url: str, **options: Any
) -> AsyncIterator[tuple[System, Gateway, generation_pb2_grpc.GenerationStub]]:
    """Run two gateways with a verifier each; leases are too long to end on a slow machine."""
    async with (
        running_system(redis_url, verifiers=2, lease_s=2.0, **options) as system,
        another_gateway(system.gateway.settings) as (other, stub, _),
    ):
        await system.gateway.sessions.end(list(system.gateway.sessions)[1])
        await until(lambda: len(other.sessions) == 1)
        yield system, other, stub


def offers(gateway: Gateway) -> int:
    """Return the number of gateways whose last report shows room."""
    return sum(report.room > 0 for report in gateway.lease_manager.renewal.alive)


async def test_requests_that_can_run_are_not_disowned(redis_url: str) -> None:
    """A third gateway without a verifier gets the requests; the two others report room."""
    async with (
        one_verifier_each(redis_url) as (system, other, _),
        another_gateway(system.gateway.settings) as (third, stub, _),
    ):
        assert not len(third.sessions)
        await until(lambda: all(offers(gateway) == 2 for gateway in (system.gateway, other)))
        disowned = count_disowned([system.gateway, other])
        requests = [request_for([*PROMPT, 20 + i], max_new_tokens=40) for i in range(8)]
        texts = await asyncio.gather(*(read_all(stub, request) for request in requests))
        assert [tokens_of(replies) for replies in texts] == [greedy([*PROMPT, 20 + i], 40) for i in range(8)]
        assert disowned == []


async def test_reported_room_is_used_once(redis_url: str) -> None:
    """The other gateway's report stays the same while this one looks several times."""
    async with one_verifier_each(redis_url, max_batch=1) as (system, other, _):
        lease_manager, scheduler, go_on = system.gateway.lease_manager, system.loop.scheduler, asyncio.Event()
        renew, verify, looks = lease_manager._leases.renew, system.loop.verifier.verify, []

        async def constant_report(*arguments: Any) -> Renewal:
            renewal = await renew(*arguments)
            looks.append(scheduler.waiting)
            reports = [r for r in renewal.alive if r.gateway_id == system.store.gateway_id]
            room = 2 if max(looks) == 5 else 0
            report = GatewayReport(other.store.gateway_id, 1, room, models=("tiny",), number=7)
            return replace(renewal, alive=[*reports, report])

        async def slow(*arguments: Any) -> Verdicts:
            await go_on.wait()
            return await verify(*arguments)

        lease_manager._leases.renew = constant_report  # type: ignore[method-assign]
        system.loop.verifier.verify = slow  # type: ignore[method-assign]
        disowned = count_disowned([system.gateway])
        requests = [request_for([*PROMPT, 20 + i], max_new_tokens=9) for i in range(6)]
        answers = asyncio.gather(*(read_all(system.stub, request) for request in requests))
        await until(lambda: len(disowned) > 0)
        enough = len(looks) + 4
        await until(lambda: len(looks) > enough)
        assert len(disowned) == 2
        go_on.set()
        assert [tokens_of(replies) for replies in await answers] == [
            greedy([*PROMPT, 20 + i], 9) for i in range(6)
        ]


async def test_requests_that_wait_for_cache_are_not_passed_around(redis_url: str) -> None:
    """Both gateways have free places in their batches, but full caches."""
    async with one_verifier_each(redis_url, kv_tokens=160) as (system, other, stub):
        disowned = count_disowned([system.gateway, other])

        async def ask(number: int) -> list[generation_pb2.GenerateReply]:
            request = request_for([*PROMPT, 20 + number], max_new_tokens=100)
            return await read_all((stub, system.stub)[number % 2], request)

        texts = await asyncio.gather(*(ask(number) for number in range(12)))
        assert [tokens_of(replies) for replies in texts] == [
            greedy([*PROMPT, 20 + i], 100) for i in range(12)
        ]
        assert len(disowned) <= 36, "a few times each, as batches end; not at every look"
