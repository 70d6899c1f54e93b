"""Settings of the gateway's callers, and of its identity towards services and Redis."""

from pathlib import Path
from typing import Any

from pydantic import Field

from specinfer.service.settings import ServiceSettings, as_path
from specinfer.service.tls import ClientTls, redis_tls


class SecuritySettings(ServiceSettings):
    """API keys of clients; TLS towards verifiers, speculator services and Redis."""

    api_keys: str = Field(
        "", description="File of API keys (`specinfer keys`); without it everybody is served."
    )
    services_tls_ca: str = Field(
        "", description="PEM file of the authorities of verifiers and speculators; with it TLS is used."
    )
    services_tls_certificate: str = Field(
        "", description="PEM file of the gateway's certificate for services that ask for one."
    )
    services_tls_key: str = Field("", description="PEM file of that certificate's private key.")
    services_tls_name: str = Field(
        "", description="Name in the certificates of services; empty: the host of each address."
    )
    redis_tls_ca: str = Field(
        "", description="PEM file of the authorities of a rediss:// server; empty: those of the system."
    )
    redis_tls_certificate: str = Field(
        "", description="PEM file of the gateway's certificate for a Redis that asks for one."
    )
    redis_tls_key: str = Field("", description="PEM file of that certificate's private key.")

    @property
    def key_file(self) -> Path | None:
        """The file of API keys, if keys are needed."""
        return as_path(self.api_keys)

    @property
    def services_tls(self) -> ClientTls:
        """Files with which channels to verifiers and speculators are opened."""
        ca, certificate, key = map(
            as_path, (self.services_tls_ca, self.services_tls_certificate, self.services_tls_key)
        )
        return ClientTls(ca, certificate, key, self.services_tls_name, prefix="services_tls")

    def redis_tls(self, url: str) -> dict[str, Any]:
        """Return keyword arguments for `Redis.from_url(url)`.

        Raises:
            SettingError: if a file is missing, cannot be read or does not fit, or the URL has no TLS.
        """
        files = (self.redis_tls_ca, self.redis_tls_certificate, self.redis_tls_key)
        return redis_tls(url, *map(as_path, files))
