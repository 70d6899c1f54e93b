"""A service that never answers does not delay other services or the renewal of leases."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.store.keys import verifier_key
from specinfer.errors import UnavailableError
from specinfer.remote.drafts import describe_together
from specinfer.v1 import speculator_pb2
from tests.integration.failures.test_gateways import PROMPT
from tests.support.oracle import greedy
from tests.support.system import running_system, until


async def test_leases_are_renewed_while_a_session_hangs_at_its_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends because another gateway drives its verifier, and its end hangs."""
    async with running_system(redis_url, verifiers=2, lease_s=0.6, linger_seconds=5.0) as system:
        gone, stays = list(system.gateway.sessions)
        may_end, renewals, renew = asyncio.Event(), 0, system.gateway.lease_manager._store.renew

        async def hangs() -> None:
            await may_end.wait()

        async def counted(*arguments: Any) -> Any:
            nonlocal renewals
            renewals += gone.lease.instance_id not in system.gateway.sessions.by_instance
            return await renew(*arguments)

        monkeypatch.setattr(gone, "end", hangs)
        monkeypatch.setattr(system.gateway.lease_manager._store, "renew", counted)
        async with Redis.from_url(redis_url) as redis:
            await redis.set(verifier_key(gone.lease.instance_id), "somebody 999", px=60_000)
            await until(lambda: renewals > 12)  # two leases' worth
            while not await redis.exists(verifier_key(stays.lease.instance_id)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # on a busy machine a renewal may be late
        assert list(system.gateway.sessions) == [stays]
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
        may_end.set()


class BarrierStub:
    """Stub whose `Describe` answers when all services of a barrier have been called."""

    def __init__(self, name: str, together: asyncio.Barrier) -> None:
        self._name, self._together = name, together

    async def Describe(self, *_: object, **__: object) -> speculator_pb2.DescribeSpeculatorReply:
        await self._together.wait()
        return speculator_pb2.DescribeSpeculatorReply(instance_id=self._name)


async def test_services_are_described_concurrently_in_the_order_of_the_settings() -> None:
    together, never = asyncio.Barrier(3), asyncio.Barrier(2)
    stubs: list[Any] = [
        *(("one", BarrierStub("one", together)), ("two", BarrierStub("two", together))),
        *(("silent", BarrierStub("silent", never)), ("three", BarrierStub("three", together))),
    ]
    answers = await describe_together(stubs, 1.0)
    assert [getattr(answer, "instance_id", "") for answer in answers] == ["one", "two", "", "three"]
    assert isinstance(answers[2], UnavailableError)
    assert await describe_together([], 1.0) == []
