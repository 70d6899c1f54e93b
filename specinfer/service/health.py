"""Check a service, for containers: `python -m specinfer.service.health ADDRESS`.

The program imports little more than gRPC, as it is started every few seconds next to busy services.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specinfer.errors import SettingError, SpecInferError, UnavailableError
from specinfer.service.channel import check_target, direct
from specinfer.service.tls import ClientTls, channel_credentials

PROGRAM = "python -m specinfer.service.health"
FLAGS_VARIABLE = "SPECINFER_HEALTH_FLAGS"
"""Environment variable with further flags, such as TLS flags in containers."""


def check_health(address: str, tls: ClientTls, timeout_s: float) -> None:
    """Check that the service at this address is serving."""
    with _open(check_target("address", address), tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise UnavailableError(f"{address}: {_reason(error)}") from error
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
        raise UnavailableError(f"{address}: the service answers {name}, not SERVING: retry later")


def _reason(error: grpc.RpcError) -> str:
    call: Any = error  # gRPC's type stubs lack the methods of call errors
    return f"{call.code().name}: {call.details()}"


def _open(address: str, tls: ClientTls) -> grpc.Channel:
    if not tls.wanted:
        return grpc.insecure_channel(address, direct())
    options: list[tuple[str, int | str]] = [*direct()]
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(address, channel_credentials(tls), options=options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Check whether a service is serving.",
        epilog=f"Exit code 0: serving; 1: not serving; 2: bad setting. Flags in ${FLAGS_VARIABLE} are added.",
    )
    parser.add_argument("address", help="host:port of the service")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="SECONDS", help="timeout of the call")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM of server authorities; enables TLS")
    parser.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="PEM of the client certificate, if required"
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM of that certificate's private key")
    parser.add_argument(
        "--tls-name", default="", metavar="NAME", help="name in the server's certificate; default: the host"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Check the given service; on failure, print one line and exit."""
    added = shlex.split(os.environ.get(FLAGS_VARIABLE, ""))
    asked = _parser().parse_args([*(sys.argv[1:] if argv is None else argv), *added])
    try:
        tls = ClientTls(asked.tls_ca, asked.tls_cert, asked.tls_key, asked.tls_name)
        check_health(asked.address, tls, asked.timeout)
    except SpecInferError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, SettingError) else 1)


if __name__ == "__main__":
    main()
