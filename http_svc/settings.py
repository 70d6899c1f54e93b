"""Settings of the HTTP service (environment prefix SPECINFER_HTTP_)."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from http_svc.entry.hosts import AllowedHosts, is_loopback
from specinfer.errors import SettingError
from specinfer.options.door_options import HttpOptions
from specinfer.service.channel import split_address, split_targets
from specinfer.service.settings import Listen, ProcessSettings, as_path
from specinfer.service.tls import ClientTls

PATIENCE_SECONDS = 10.0
"""Seconds of retries after a gateway is lost; then the call fails."""


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Addresses, TLS and retry time for calls to gateways."""

    addresses: tuple[str, ...]
    tls: ClientTls
    patience_seconds: float = PATIENCE_SECONDS


class ApiSettings(ProcessSettings, HttpOptions):
    """Settings of OpenAI's API over HTTP, shared with the all-in-one process."""

    group: ClassVar[str] = "HTTP API"

    listen: Listen = "127.0.0.1:8000"
    max_calls: int = Field(4096, ge=1, description="Maximum calls at once; more are refused with 503.")

    def check(self) -> None:
        """Check `served_model_name`, too."""
        names = self.model_names
        if len(set(names)) < len(names) or (self.served_model_name and not all(names)):
            reason = "must be different names, separated by commas, none empty"
            raise SettingError("served_model_name", self.served_model_name, reason)
        super().check()

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names in `served_model_name`; empty: use the gateways' name."""
        return (
            tuple(name.strip() for name in self.served_model_name.split(","))
            if self.served_model_name
            else ()
        )

    @property
    def origins(self) -> list[str]:
        """Origins of web pages that may call this API (CORS)."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @property
    def hosts(self) -> AllowedHosts:
        """Accepted `Host` headers."""
        names = [name.strip() for name in self.allowed_hosts.split(",") if name.strip()]
        listens = split_address("listen", self.listen, lowest_port=0)[0]
        return AllowedHosts(names or (["localhost"] if is_loopback(listens) else ["*"]))


class HttpSettings(ApiSettings):
    """Settings of the HTTP service, with its access to gateways."""

    group: ClassVar[str] = "Gateways"

    model_config = SettingsConfigDict(**{**ProcessSettings.model_config, "env_prefix": "SPECINFER_HTTP_"})

    gateways: str = Field(
        "127.0.0.1:50051",
        description="Gateways that share a Redis, host:port, separated by commas; calls go to them in turn, "
        "without those that just failed.",
    )
    patience_seconds: float = Field(
        PATIENCE_SECONDS, ge=0, description="Time for which a lost gateway is retried before a call fails."
    )
    gateway_tls_ca: str = Field(
        "", description="PEM file of the gateways' certificate authorities; switches on TLS."
    )
    gateway_tls_certificate: str = Field(
        "", description="PEM file of this service's certificate, for gateways that require one."
    )
    gateway_tls_key: str = Field("", description="PEM file of that certificate's private key.")
    gateway_tls_name: str = Field(
        "", description="Name in the gateways' certificates; empty: the host of each address."
    )

    def check(self) -> None:
        """Check the gateways' addresses and TLS files, too."""
        self.access.tls.check()
        super().check()

    @property
    def access(self) -> GatewayAccess:
        """Access to the gateways, from these settings."""
        ca, certificate, key = map(
            as_path, (self.gateway_tls_ca, self.gateway_tls_certificate, self.gateway_tls_key)
        )
        tls = ClientTls(ca, certificate, key, self.gateway_tls_name, prefix="gateway_tls")
        return GatewayAccess(tuple(split_targets("gateways", self.gateways)), tls, self.patience_seconds)
