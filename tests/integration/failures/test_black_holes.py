"""A service that never answers does not delay other services or the renewal of leases."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.session.verifier import VerifierClient
from gateway.store.keys import verifier_key
from specinfer.errors import UnavailableError
from specinfer.remote import drafts
from specinfer.remote.drafts import describe_together
from specinfer.v1 import speculator_pb2
from tests.integration.failures.test_gateways import LONG, PROMPT, begin, rest, tokens_of
from tests.support.network.black_hole import black_hole
from tests.support.oracle import greedy
from tests.support.system import another_gateway, crash, request_for, running_system, until


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `Describe` calls wait forever for services that do not answer."""
    describe_verifier, describe_speculators = VerifierClient.describe, drafts.describe_speculators

    def waiting(ask: Any) -> Any:
        async def patiently(*arguments: Any) -> Any:
            try:
                return await ask(*arguments)
            except UnavailableError:
                await asyncio.Event().wait()

        return patiently

    monkeypatch.setattr(VerifierClient, "describe", waiting(describe_verifier))
    monkeypatch.setattr(drafts, "describe_speculators", waiting(describe_speculators))


@pytest.mark.usefixtures("patient")
async def test_a_gateway_takes_over_although_some_services_do_not_answer(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        holes = [await stack.enter_async_context(black_hole()) for _ in range(4)]
        system = await stack.enter_async_context(running_system(redis_url, lease_s=0.6, linger_seconds=5.0))
        verifiers = ",".join([holes[0].address, system.gateway.settings.verifiers, holes[1].address])
        options = {"verifiers": verifiers, "speculators": f"{holes[2].address},{holes[3].address}"}
        settings = system.gateway.settings.model_copy(update=options)
        other, stub, _ = await stack.enter_async_context(another_gateway(settings))
        await until(lambda: holes[0].callers > 0 and holes[1].callers > 0)
        request = request_for(PROMPT, max_new_tokens=LONG)
        reader = await begin(system.stub, request)
        await crash(system.gateway)
        replies = await rest(stub, request.request_id, len(reader.tokens))
        assert reader.tokens + tokens_of(replies) == greedy(PROMPT, LONG)
        assert len(other.sessions) == 1
        assert all(hole.callers for hole in holes), "both speculators were called"
        system.gateway = other


async def test_leases_are_renewed_while_a_session_hangs_at_its_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends because another gateway drives its verifier, and its end hangs."""
    async with running_system(redis_url, verifiers=2, lease_s=0.6, linger_seconds=5.0) as system:
        gone, stays = list(system.gateway.sessions)
        may_end, renewals, renew = asyncio.Event(), 0, system.gateway.lease_manager._leases.renew

        async def hangs() -> None:
            await may_end.wait()

        async def counted(*arguments: Any) -> Any:
            nonlocal renewals
            renewals += gone.lease.instance_id not in system.gateway.sessions.by_instance
            return await renew(*arguments)

        monkeypatch.setattr(gone, "end", hangs)
        monkeypatch.setattr(system.gateway.lease_manager._leases, "renew", counted)
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
