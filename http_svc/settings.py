"""Settings of the HTTP service (environment prefix SPECINFER_HTTP_)."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from http_svc.entry.hosts import AllowedHosts, is_loopback
from specinfer.errors import SettingError
from specinfer.service.channel import split_address, split_targets
from specinfer.service.settings import ProcessSettings, as_path
from specinfer.service.tls import ClientTls

PATIENCE_SECONDS = 10.0
"Time that a lost gateway is retried before a call fails."


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Access to the gateways that answer calls."""

    addresses: tuple[str, ...]
    tls: ClientTls
    patience_seconds: float = PATIENCE_SECONDS


class ApiSettings(ProcessSettings):
    """Settings of OpenAI's API over HTTP, shared with the all-in-one process."""

    group: ClassVar[str] = "HTTP API"

    listen: str = Field("127.0.0.1:8000", description="Address to listen on, host:port.")
    served_model_name: str = Field(
        "",
        description="Names by which callers call the model, separated by commas; answers carry the first. "
        "Empty: the gateways' name of it.",
    )
    cors_origins: str = Field(
        "",
        description="Origins whose pages may call, separated by commas, for example https://chat.example; "
        "* for all.",
    )
    allowed_hosts: str = Field(
        "",
        description="Accepted Host headers, separated by commas; *.example.com for subdomains, * for all. "
        "Empty: on loopback localhost and numeric addresses, else all.",
    )
    max_calls: int = Field(4096, ge=1, description="Maximum calls at once; more are refused with 503.")

    def check(self) -> None:
        """Check also the model's names."""
        names = self.model_names
        if len(set(names)) < len(names) or (self.served_model_name and not all(names)):
            raise SettingError("served_model_name", self.served_model_name, "an empty name, or one twice")
        super().check()

    @property
    def model_names(self) -> tuple[str, ...]:
        """Configured names of the model; empty: the gateways' name is used."""
        return (
            tuple(name.strip() for name in self.served_model_name.split(","))
            if self.served_model_name
            else ()
        )

    @property
    def origins(self) -> list[str]:
        """The origins whose pages may call."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @property
    def hosts(self) -> AllowedHosts:
        """Host headers of calls that are answered."""
        names = [name.strip() for name in self.allowed_hosts.split(",") if name.strip()]
        listens = split_address("listen", self.listen, lowest_port=0)[0]
        return AllowedHosts(names or (["localhost"] if is_loopback(listens) else ["*"]))


class HttpSettings(ApiSettings):
    """Settings of the HTTP service, which speaks OpenAI's API and calls gateways."""

    group: ClassVar[str] = "Gateways"

    model_config = SettingsConfigDict(**{**ProcessSettings.model_config, "env_prefix": "SPECINFER_HTTP_"})

    gateways: str = Field(
        "127.0.0.1:50051",
        description="Gateways that share a Redis, host:port, separated by commas; the first that answers is "
        "asked.",
    )
    patience_seconds: float = Field(
        PATIENCE_SECONDS, ge=0, description="Time that a lost gateway is retried before a call fails."
    )
    gateway_tls_ca: str = Field(
        "", description="PEM file of the authorities of gateways; with it TLS is used."
    )
    gateway_tls_certificate: str = Field(
        "", description="PEM file of this service's certificate for gateways that ask for one."
    )
    gateway_tls_key: str = Field("", description="PEM file of that certificate's private key.")
    gateway_tls_name: str = Field(
        "", description="Name in the certificates of gateways; empty: the host of each address."
    )

    def check(self) -> None:
        """Check also the gateways and TLS towards them."""
        self.access.tls.check()
        super().check()

    @property
    def access(self) -> GatewayAccess:
        """Addresses of the gateways, and how they are called."""
        ca, certificate, key = map(
            as_path, (self.gateway_tls_ca, self.gateway_tls_certificate, self.gateway_tls_key)
        )
        tls = ClientTls(ca, certificate, key, self.gateway_tls_name, prefix="gateway_tls")
        return GatewayAccess(tuple(split_targets("gateways", self.gateways)), tls, self.patience_seconds)
