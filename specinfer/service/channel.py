"""gRPC channels between our services: message limits, keepalive, waiting until a service is ready."""

import asyncio
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specinfer.errors import UnavailableError
from specinfer.service.tls import ClientTls, channel_credentials

DEFAULT_MAX_MESSAGE = 64 * 1024 * 1024


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE) -> list[tuple[str, int]]:
    """Options that servers and channels share.

    Channels ping when nothing was said for 30 seconds, so that a dead peer is noticed. A server by default
    counts pings without data as strikes and ends the connection with ENHANCE_YOUR_CALM after three: ours
    allow them. A name is looked up again when its connection is lost, at most once a second (gRPC's default
    is 30 seconds), so that replicas that came in the meantime are found.
    """
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ]


def open_channel(address: str, tls: ClientTls | None = None) -> grpc.aio.Channel:
    """A channel; connects on first use and reconnects by itself. Plaintext unless `tls` names files.

    Raises:
        SettingError: if a file of `tls` is missing, cannot be read or does not fit.
    """
    options: list[tuple[str, int | str]] = [*channel_options()]
    if tls is None or not tls.wanted:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)


async def wait_until_serving(channel: grpc.aio.Channel, name: str, timeout_s: float) -> None:
    """Waits until the health service says SERVING.

    Raises:
        UnavailableError: if it does not within the time given.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
        except grpc.aio.AioRpcError:
            pass  # not up yet; the loop ends in UnavailableError
        await asyncio.sleep(0.05)
    raise UnavailableError(f"{name} is not serving after {timeout_s:.0f} s")
