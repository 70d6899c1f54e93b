"""Connections of commands to a gateway: addresses, API key, TLS."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from specinfer.client import AsyncClient, Patience, Retry
from specinfer.errors import UnavailableError
from specinfer.service.tls import ClientTls
from specinfer.v1 import verifier_pb2, verifier_pb2_grpc

_TIMEOUT_S = 5.0


def describe_verifier(address: str) -> verifier_pb2.DescribeVerifierReply:
    """Return the description of the verifier at an address.

    Raises:
        UnavailableError: if it does not answer.
    """
    with grpc.insecure_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierStub(channel)  # type: ignore[no-untyped-call]
        try:
            told: verifier_pb2.DescribeVerifierReply = stub.Describe(
                verifier_pb2.DescribeVerifierRequest(), timeout=_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise UnavailableError(f"the verifier at {address} does not answer") from error
    return told


API_KEY_VARIABLE = "SPECINFER_API_KEY"
TRACE_VARIABLE = "TRACEPARENT"
"""Where programs that trace what they start put its trace context."""
NO_PATIENCE = Patience(patience_s=0.0)
"""For measurements, which an interruption spoils, and for local systems, whose gateway does not come back."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A command's options of the gateway."""

    addresses: str
    """Addresses with commas between them."""
    api_key: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    traceparent: str = ""
    """Trace context of the requests."""

    def client(
        self, patience: Patience = NO_PATIENCE, on_retry: Callable[[Retry], None] = lambda _: None
    ) -> AsyncClient:
        """Return a client, which connects on first use.

        Raises:
            InvalidInputError: if an address is empty.
        """
        return AsyncClient(
            self.addresses,
            self.api_key,
            self.tls,
            patience=patience,
            on_retry=on_retry,
            traceparent=self.traceparent,
        )


def client_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ClientTls | None:
    """Return TLS of a command's options, checked; None without any.

    Raises:
        SettingError: if a file is missing, cannot be read or does not fit.
    """
    tls = ClientTls(ca, certificate, key)
    tls.check()
    return tls if tls.wanted else None
