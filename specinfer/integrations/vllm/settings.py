"""Settings of the proposer, from environment variables SPECINFER_VLLM_*."""

import os

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from specinfer.errors import SettingError
from specinfer.service.channel import split_targets
from specinfer.service.settings import as_path
from specinfer.service.tls import ClientTls

PREFIX = "SPECINFER_VLLM_"


class VllmSettings(BaseSettings):
    """Addresses of the speculator services, and TLS for calling them."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid")

    speculators: str = Field(min_length=1, description="Addresses of speculator services, comma-separated.")
    tls_ca: str = Field("", description="PEM file of the services' authorities; switches on TLS.")
    tls_certificate: str = Field("", description="PEM file of our certificate, if services require one.")
    tls_key: str = Field("", description="PEM file of that certificate's private key.")
    tls_name: str = Field(
        "", description="Name in the services' certificates; empty: the host of each address."
    )

    @property
    def addresses(self) -> list[str]:
        return split_targets(f"{PREFIX}SPECULATORS", self.speculators)

    @property
    def tls(self) -> ClientTls:
        ca, certificate, key = map(as_path, (self.tls_ca, self.tls_certificate, self.tls_key))
        return ClientTls(ca, certificate, key, self.tls_name, prefix=f"{PREFIX.lower()}tls")

    @classmethod
    def load(cls) -> "VllmSettings":
        """Read the environment.

        Raises:
            SettingError: naming the variable and its value.
        """
        for name in os.environ:
            if name.startswith(PREFIX) and name[len(PREFIX) :].lower() not in cls.model_fields:
                known = ", ".join(f"{PREFIX}{field.upper()}" for field in cls.model_fields)
                raise SettingError(name, os.environ[name], f"unknown setting: must be one of {known}")
        try:
            settings = cls()  # type: ignore[call-arg]  # from the environment
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + ".".join(map(str, first["loc"])).upper().removeprefix(PREFIX)
            raise SettingError(name, os.environ.get(name), first["msg"]) from error
        settings.tls.check()
        split_targets(f"{PREFIX}SPECULATORS", settings.speculators)
        return settings
