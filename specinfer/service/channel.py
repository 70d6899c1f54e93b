"""Check addresses of services, and open channels."""

import asyncio
import logging
import os
from typing import cast

import grpc

from specinfer.errors import SettingError
from specinfer.service.in_process import SCHEME, InProcessChannel
from specinfer.service.tls import ClientTls, channel_credentials

log = logging.getLogger(__name__)

_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
"""gRPC's schemes before `host:port`."""


def split_address(setting: str, address: str, lowest_port: int = 1) -> tuple[str, int]:
    """Split `host:port`, and remove the brackets of an IPv6 host."""
    host, _, port = address.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdecimal() and lowest_port <= int(port) < 2**16
    if not inner or not is_port or (":" in inner and inner is host):
        raise SettingError(setting, address, f"must be host:port with a port from {lowest_port} to 65535")
    return inner, int(port)


def check_target(setting: str, address: str, lowest_port: int = 1) -> str:
    """Check a gRPC target.

    A target is `host:port`, `dns:///host:port`, `ipv4:` or `ipv6:` with `host:port`, `unix:path` or `in-process:NAME`.
    """
    if address.startswith(("unix:", SCHEME)) and address not in ("unix:", SCHEME):
        return address
    scheme = next((scheme for scheme in _SCHEMES if address.startswith(scheme)), "")
    try:
        split_address(setting, address.removeprefix(scheme), lowest_port)
    except SettingError as error:
        raise SettingError(setting, address, error.why) from error
    return address


def split_targets(setting: str, text: str) -> list[str]:
    """Split and check a comma-separated list of gRPC targets."""
    targets = [part.strip() for part in text.split(",")]
    if not all(targets):
        raise SettingError(setting, text, "must be host:port, or several separated by commas")
    return [check_target(setting, target) for target in targets]


DEFAULT_MAX_MESSAGE = 64 * 1024 * 1024


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE) -> list[tuple[str, int]]:
    """Return the options that servers and channels share.

    Channels ping after 30 idle seconds to detect a dead peer; servers allow these pings, which they would refuse
    with ENHANCE_YOUR_CALM by default. After a lost connection, the name is resolved again, at most once per second
    (default: every 30 seconds), to find new replicas.
    """
    return [
        *direct(),
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


def direct() -> list[tuple[str, int]]:
    """Return the channel option that ignores `http_proxy`.

    By default, gRPC uses the proxy of `http_proxy` even for services on the same machine. The variable
    `grpc_proxy` sets a proxy between services.
    """
    return [("grpc.enable_http_proxy", int("grpc_proxy" in os.environ))]


def open_channel(address: str, tls: ClientTls | None = None) -> grpc.aio.Channel:
    """Return a channel, which connects on first use and reconnects by itself.

    The channel is plaintext unless `tls` names files. `in-process:NAME` calls a service of this process.
    """
    if address.startswith(SCHEME):
        return cast(grpc.aio.Channel, InProcessChannel(address))
    options: list[tuple[str, int | str]] = [*channel_options()]
    if tls is None or not tls.wanted:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)


async def resolve(entries: list[str]) -> list[str]:
    """Return the addresses of a list of `host:port` and `dns:///name:port`.

    A name that cannot be resolved is logged, and has no addresses in the result.
    """
    addresses: list[str] = []
    for entry in entries:
        if not entry.startswith("dns:///"):
            addresses.append(entry)
            continue
        host, _, port = entry.removeprefix("dns:///").rpartition(":")
        try:
            rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
        except OSError as error:
            log.warning("%s cannot be resolved, its services are not used: %s", entry, error)
            continue
        addresses += [_join(str(place[0]), int(place[1])) for *_, place in rows]
    return list(dict.fromkeys(addresses))


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def service_addresses(text: str) -> list[str]:
    """Split a setting into services at commas; replicas stay joined by `|`."""
    services = [part.strip() for part in text.split(",") if part.strip()]
    for service in services:
        _check_service(service)
    return services


def replica_addresses(service: str) -> list[str]:
    """Split a service into its replicas' addresses, without DNS lookups."""
    return [replica.strip() for replica in service.split("|")]


def _check_service(service: str) -> None:
    replicas = replica_addresses(service)
    for replica in replicas:
        if len(replicas) > 1:
            split_address("speculators", replica)
        else:
            check_target("speculators", replica)
    if len(set(replicas)) < len(replicas):
        raise SettingError("speculators", service, "must not name a replica twice")
