"""Connect commands to a gateway: addresses, API key, TLS."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from specinfer.client import AsyncClient, Patience, Retry
from specinfer.errors import SettingError, UnavailableError
from specinfer.service.channel import direct, split_address, split_targets
from specinfer.service.tls import ClientTls
from specinfer.v1 import verifier_pb2, verifier_pb2_grpc

_TIMEOUT_S = 5.0


def describe_verifier(address: str) -> verifier_pb2.DescribeVerifierReply:
    """Return the description of the verifier at an address."""
    with grpc.insecure_channel(address, direct()) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)  # type: ignore[no-untyped-call]
        try:
            description: verifier_pb2.DescribeVerifierReply = stub.Describe(
                verifier_pb2.DescribeVerifierRequest(), timeout=_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise UnavailableError(f"the verifier at {address} does not answer") from error
    return description


def _refuses(target: str) -> bool:
    """Return whether nothing listens at a target; False if unknown."""
    try:
        place = split_address("--address", target)
        socket.create_connection(place, timeout=_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, SettingError):
        return False  # a timeout, or no host:port: the client retries or reports this itself
    return False


API_KEY_VARIABLE = "SPECINFER_API_KEY"
TRACE_VARIABLE = "TRACEPARENT"
"""Environment variable with the W3C trace context of the calling program."""
NO_PATIENCE = Patience(patience_s=0.0)
"""Do not retry, in measurements and temporary systems."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Addresses, key, TLS and trace context of a command's calls to gateways."""

    addresses: str
    """Addresses of gateways, separated by commas."""
    api_key: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    traceparent: str = ""
    """W3C trace context sent with the requests."""

    def check(self) -> "Connection":
        """Return this connection, if a gateway accepts connections at one of the addresses.

        The client retries later failures; this check reports at once that no gateway was started.

        Raises:
            UnavailableError: if none does.
        """
        if all(map(_refuses, split_targets("--address", self.addresses))):
            raise UnavailableError(
                f"no gateway at {self.addresses}: start one with `specinfer serve` or `specinfer up`"
            )
        return self

    def client(
        self, patience: Patience = NO_PATIENCE, on_retry: Callable[[Retry], None] = lambda _: None
    ) -> AsyncClient:
        """Return a client, which connects on first use."""
        return AsyncClient(
            self.addresses,
            self.api_key,
            self.tls,
            patience=patience,
            on_retry=on_retry,
            traceparent=self.traceparent,
        )
