"""How commands reach a gateway: addresses, API key, TLS."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specinfer.client import AsyncClient, Patience, Retry
from specinfer.service.tls import ClientTls

API_KEY_VARIABLE = "SPECINFER_API_KEY"
TRACE_VARIABLE = "TRACEPARENT"
"""Where programs that trace what they start put its trace context."""
NO_PATIENCE = Patience(patience_s=0.0)
"""For measurements, which an interruption spoils, and for local systems, whose gateway does not come back."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What the options of a command say about the gateway."""

    addresses: str
    """With commas between them."""
    api_key: str | None = field(default=None, repr=False)
    tls: ClientTls | None = None
    traceparent: str = ""
    """Trace context of the requests."""

    def client(
        self, patience: Patience = NO_PATIENCE, on_retry: Callable[[Retry], None] = lambda _: None
    ) -> AsyncClient:
        """A client, which connects on first use.

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
    """TLS of a command's options, checked; None without any.

    Raises:
        SettingError: if a file is missing, cannot be read or does not fit.
    """
    tls = ClientTls(ca, certificate, key)
    tls.check()
    return tls if tls.wanted else None
