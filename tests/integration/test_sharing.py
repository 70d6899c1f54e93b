"""Gateways that give each other waiting requests."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gateway.app import Gateway
from specinfer.v1 import generation_pb2
from tests.integration.test_gateways import PROMPT, tokens_of
from tests.oracle import greedy
from tests.system import another_gateway, request_for, running_system, until


def count_given_away(gateways: Sequence[Gateway]) -> list[str]:
    """The requests that these gateways disown from now on."""
    given: list[str] = []
    for gateway in gateways:
        disown = gateway.store.disown

        async def counted(
            names: Sequence[str], *arguments: Any, disown: Any = disown, **options: Any
        ) -> None:
            given.extend(names)
            await disown(names, *arguments, **options)

        gateway.store.disown = counted  # type: ignore[method-assign]
    return given


async def test_requests_that_wait_for_cache_are_not_passed_to_and_fro(redis_url: str) -> None:
    """Both gateways have places in their batches, but no room in their verifiers' caches."""
    async with (
        running_system(redis_url, verifiers=2, lease_s=0.6, kv_tokens=160) as system,
        another_gateway(system.gateway.settings) as (other, stub, _),
    ):
        await system.gateway.lanes.end(list(system.gateway.lanes)[1])
        await until(lambda: len(other.lanes) == 1)
        given = count_given_away([system.gateway, other])

        async def ask(number: int) -> list[generation_pb2.GenerateReply]:
            request = request_for([*PROMPT, 20 + number], max_new_tokens=100)
            return [reply async for reply in (stub, system.stub)[number % 2].Generate(request)]

        found = await asyncio.gather(*(ask(number) for number in range(12)))
        assert [tokens_of(replies) for replies in found] == [
            greedy([*PROMPT, 20 + i], 100) for i in range(12)
        ]
        assert len(given) <= 12
