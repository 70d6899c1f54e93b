"""A service's server refuses bad settings before it serves, and keeps idle streams open."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from specinfer.cli.local import processes
from specinfer.cli.local.processes import free_ports
from specinfer.errors import InvalidInputError, SettingError
from specinfer.service.channel import channel_options
from specinfer.service.metrics import serve_metrics
from specinfer.service.server import LIVENESS, ServiceServer
from specinfer.service.settings import ServiceSettings


async def test_an_address_that_another_server_has_is_refused() -> None:
    """If two servers shared the port, every second connection would silently reach the wrong service."""
    settings = ServiceSettings(listen=f"127.0.0.1:{free_ports(1)[0]}")
    first, second = ServiceServer(settings, ["first"]), ServiceServer(settings, ["second"])
    await first.start()
    try:
        with pytest.raises(SettingError, match=rf"listen = '{settings.listen}'.*in use by another program"):
            await second.start()
    finally:
        await asyncio.gather(first.stop(), second.stop())


def test_free_ports_are_returned_once_and_no_outgoing_connection_takes_them() -> None:
    ports = [port for _ in range(8) for port in free_ports(8)]
    assert len(set(ports)) == 64
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert not set(ports) & set(range(int(first), int(last) + 1))


def test_a_port_in_use_is_not_returned_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setattr(processes, "PORTS", range(port, port + 1))
        with pytest.raises(InvalidInputError, match=f"{port} to {port}.*all are in use"):
            free_ports(1)


def test_servers_count_no_ping_as_a_strike() -> None:
    options = dict(channel_options())
    assert options["grpc.http2.max_ping_strikes"] == 0
    assert options["grpc.http2.max_pings_without_data"] == 0


@pytest.mark.thorough
async def test_an_idle_stream_stays_open() -> None:
    """Channels ping idle connections; a server that counts strikes would close them after three (ENHANCE_YOUR_CALM).

    The test pings every second, the minimum, instead of every 30 seconds.
    """
    server = ServiceServer(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0), ["idle"])
    address = f"127.0.0.1:{await server.start()}"
    options = [*channel_options(), ("grpc.keepalive_time_ms", 1000)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await stream.read()).status == health_pb2.HealthCheckResponse.SERVING
        await asyncio.sleep(4.5)
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        assert not stream.done()
        stream.cancel()
    await server.stop()


def test_metrics_listen_on_the_configured_address() -> None:
    port = free_ports(1)[0]
    serve_metrics(CollectorRegistry(), "127.0.0.2", port)
    socket.create_connection(("127.0.0.2", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert ServiceSettings().metrics_host == "127.0.0.1"


def test_a_metrics_port_in_use_is_a_bad_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=rf"metrics_port = {port}:"):
            serve_metrics(CollectorRegistry(), "127.0.0.1", port)
    with pytest.raises(SettingError, match=r"metrics_host = '192\.0\.2\.1'"):
        serve_metrics(CollectorRegistry(), "192.0.2.1", free_ports(1)[0])
    serve_metrics(CollectorRegistry(), "192.0.2.1", 0)  # switched off


async def test_a_service_that_waits_for_another_one_is_alive_but_not_ready() -> None:
    """Supervisors restart by liveness, and send requests by the other answers."""
    server = ServiceServer(ServiceSettings(listen="127.0.0.1:0", drain_seconds=0), ["waits"])
    address = f"127.0.0.1:{await server.start()}"
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def statuses() -> list[int]:
            requests = [health_pb2.HealthCheckRequest(service=name) for name in (LIVENESS, "", "waits")]
            return [(await stub.Check(request, timeout=60)).status for request in requests]

        assert await statuses() == [serving, serving, serving]
        await server.set_serving(False)
        assert await statuses() == [serving, not_serving, not_serving]
        await server.set_serving(True)
        assert await statuses() == [serving, serving, serving]
    await server.stop()
