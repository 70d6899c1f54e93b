"""Addresses of services, and channels to them."""

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
"""Schemes of gRPC's names, before a host and a port."""


def split_address(setting: str, address: str, lowest_port: int = 1) -> tuple[str, int]:
    """Split `host:port`, and remove the brackets of an IPv6 host.

    Raises:
        SettingError: if it is no such address. gRPC would call port 443 instead of one that is missing,
            and the port modulo 65,536 if it is too large.
    """
    host, _, port = address.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdecimal() and lowest_port <= int(port) < 2**16
    if not inner or not is_port or (":" in inner and inner is host):
        raise SettingError(setting, address, f"must be host:port with a port from {lowest_port} to 65535")
    return inner, int(port)


def check_target(setting: str, address: str, lowest_port: int = 1) -> str:
    """Check a channel's target: `host:port`, `dns:///host:port`, `unix:path`, `in-process:NAME`.

    Raises:
        SettingError: if it is none.
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
    """Return targets of gRPC from a list with commas between them.

    Raises:
        SettingError: if one is empty or none.
    """
    targets = [part.strip() for part in text.split(",")]
    if not all(targets):
        raise SettingError(setting, text, "must be host:port, several with commas between them")
    return [check_target(setting, target) for target in targets]


DEFAULT_MAX_MESSAGE = 64 * 1024 * 1024


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE) -> list[tuple[str, int]]:
    """Return the options that servers and channels share.

    Channels ping when nothing was said for 30 seconds, so that a dead peer is noticed. A server by default
    counts pings without data as strikes and ends the connection with ENHANCE_YOUR_CALM after three: ours
    allow them. A name is looked up again when its connection is lost, at most once a second (gRPC's default
    is 30 seconds), so that replicas that came in the meantime are found.
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
    """Return the option of channels that leaves out a proxy.

    gRPC would go through the one in `http_proxy`, which is for the way out, also to services of the same machine. Who
    wants one between ours names it in `grpc_proxy`.
    """
    return [("grpc.enable_http_proxy", int("grpc_proxy" in os.environ))]


def open_channel(address: str, tls: ClientTls | None = None) -> grpc.aio.Channel:
    """Return a channel, which connects on first use and reconnects by itself.

    It is plaintext unless `tls` names files. One to `in-process:NAME` calls that service of this process directly.

    Raises:
        SettingError: if a file of `tls` is missing, cannot be read or does not fit.
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
    """Return the present addresses of a list of `host:port` and `dns:///name:port`.

    A name that cannot be resolved stands for none; its services come back when it can.
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
            log.warning("%s cannot be resolved: %s", entry, error)
            continue
        addresses += [_join(str(place[0]), int(place[1])) for *_, place in rows]
    return list(dict.fromkeys(addresses))


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
