"""Names and readiness of the models of gateways: simultaneous calls ask a gateway once."""

import asyncio
import socket
from contextlib import ExitStack
from typing import Any, cast

import pytest

from http_svc.errors import ApiError
from http_svc.models import GatewayHealth, Models
from http_svc.settings import HttpSettings
from specinfer.client import AsyncClient
from specinfer.errors import SettingError, UnavailableError
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.service.tls import ClientTls
from specinfer.v1 import generation_pb2


class Gateway:
    """Answers `status` once `gate` is set."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors, self.asked, self.gate = list(errors), 0, asyncio.Event()

    async def status(self) -> generation_pb2.StatusReply:
        self.asked += 1
        await self.gate.wait()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return generation_pb2.StatusReply(model="tiny")

    async def checks(self, models: Models, *names: str) -> list[Any]:
        """Return the results of simultaneous calls that name these models."""
        calls = [asyncio.create_task(models.check(cast(AsyncClient, self), name)) for name in names]
        await asyncio.sleep(0)
        self.gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)


async def test_a_model_was_created_when_it_was_first_served() -> None:
    clock = iter([100.5, 200.0])
    gateway, models = Gateway(), Models(wall_clock=lambda: next(clock))
    gateway.gate.set()
    for _ in range(2):
        (model,) = await models.describe(cast(AsyncClient, gateway))
        assert model["created"] == 100
    models.remember(generation_pb2.StatusReply(model="other"))
    assert next(clock, None) is None


async def test_calls_at_the_same_moment_ask_once() -> None:
    now = 100.0
    gateway, models = Gateway(), Models(lambda: now)
    results = await gateway.checks(models, *["tiny"] * 50, "other")
    assert results[:50] == ["tiny"] * 50
    assert isinstance(results[50], ApiError)
    assert gateway.asked == 1
    now += 4.0
    await gateway.checks(models, "tiny")
    assert gateway.asked == 1
    now += 2.0
    await gateway.checks(models, "tiny")
    assert gateway.asked == 2


async def test_only_configured_names_are_served_and_answers_have_the_first() -> None:
    gateway, models = Gateway(), Models(given=["gpt-4o", "mini"])
    gateway.gate.set()
    good, other, names = await gateway.checks(models, "mini", "gpt", "tiny")
    assert (good, gateway.asked) == ("gpt-4o", 1)
    assert [error.detail for error in (other, names)] == [
        f"model = {name!r}: not served here, only 'gpt-4o', 'mini'" for name in ("gpt", "tiny")
    ]
    client = cast(AsyncClient, gateway)
    assert [one["id"] for one in await models.describe(client)] == ["gpt-4o", "mini"]
    assert [one["id"] for one in await models.describe(client, "mini")] == ["mini"]


@pytest.mark.parametrize("names", ["a,", ",", "a, a", " "])
def test_bad_served_names_are_refused(names: str) -> None:
    with pytest.raises(SettingError, match="served_model_name"):
        HttpSettings.load("http_svc", ["--served-model-name", names])


async def test_a_call_that_shared_a_failed_check_asks_again() -> None:
    """The error may concern the other call's key."""
    gateway, models = Gateway(UnavailableError("no such key")), Models(lambda: 100.0)
    first, second = await gateway.checks(models, "tiny", "tiny")
    assert isinstance(first, UnavailableError)
    assert second == "tiny"
    assert gateway.asked == 2


async def test_a_cancelled_call_does_not_cancel_another() -> None:
    gateway, models = Gateway(), Models(lambda: 100.0)
    first, second = [asyncio.create_task(models.check(cast(AsyncClient, gateway), "tiny")) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    gateway.gate.set()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_gateways_that_hang_do_not_delay_the_answer_of_a_good_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hanging gateways accept connections and never answer; waiting for them would take an hour."""
    monkeypatch.setattr("http_svc.models._TIMEOUT_S", 3600.0)
    server = ServiceServer(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0.0), [])
    good = f"127.0.0.1:{await server.start()}"
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        hung = [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
        health = GatewayHealth((*hung, good), ClientTls())
        async with asyncio.timeout(30):
            assert await health.problem() == ""
        await health.close()
        monkeypatch.setattr("http_svc.models._TIMEOUT_S", 0.2)
        health = GatewayHealth(tuple(hung), ClientTls())
        problem = await health.problem()
        assert all(f"gateway at {address}: " in problem for address in hung)
        await health.close()
    await server.stop()
