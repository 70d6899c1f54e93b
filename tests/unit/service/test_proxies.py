"""The proxy of the environment (`http_proxy`) is not used between services."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from specinfer.openai_api.server import ApiServer
from specinfer.service.channel import open_channel
from specinfer.service.health import check_health
from specinfer.service.tls import ClientTls
from tests.support.network.scripted_api import ApiScript, scripted_api

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Yield the address of a service on a machine whose configured proxy does not answer."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, UNREACHABLE)
    server, servicer = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def ask(channel: grpc.aio.Channel) -> None:
    async with channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)


async def test_services_call_each_other_directly(address: str) -> None:
    await ask(open_channel(address))
    await asyncio.to_thread(check_health, address, ClientTls(), 10)


async def test_a_proxy_configured_for_grpc_is_used(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a plain gRPC channel uses `http_proxy`."""
    with pytest.raises(grpc.RpcError):
        await ask(grpc.aio.insecure_channel(address))
    monkeypatch.setenv("grpc_proxy", UNREACHABLE)
    with pytest.raises(grpc.RpcError):
        await ask(open_channel(address))


async def test_a_server_on_this_machine_is_called_directly(address: str) -> None:
    with scripted_api(ApiScript(lambda path, body, before: (200, {}, {}))) as url:
        assert await asyncio.to_thread(ApiServer.at(url).model) == ("m", "specinfer")
