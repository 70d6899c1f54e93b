"""Read a service's settings from flags and environment variables.

Flags (--kebab-case) and variables are named after fields. An unknown flag, an unknown variable with the
service's prefix or an invalid value is a one-line error that names flag and value, with exit code 2.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from annotated_types import Ge, Le
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from specinfer.errors import SettingError
from specinfer.options.door_options import TlsOptions
from specinfer.options.model_options import Option, check_values
from specinfer.options.service_flags import read_flags
from specinfer.service.channel import check_target
from specinfer.service.tls import ServerTls

KIBIBYTE, MEBIBYTE = 1024, 1024 * 1024


Listen: TypeAlias = Annotated[str, Option("Address to listen on, host:port.")]
MetricsPort: TypeAlias = Annotated[int, Ge(0), Le(65535), Option("Port of the Prometheus endpoint; 0: none.")]


class ProcessSettings(BaseSettings, TlsOptions):
    """Settings of every process that serves gRPC or HTTP."""

    group: ClassVar[str] = "Process"
    """Heading of this class's settings in `--help`."""

    model_config = SettingsConfigDict(extra="forbid")

    listen: Listen = "127.0.0.1:50050"
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="Least severe log level."
    )
    log_format: str = Field(
        "text",
        pattern="^(text|json)$",
        description="Format of log lines: text, or one JSON object per line.",
    )
    log_requests: bool = Field(
        False, description="Log exceptions with their messages, which may quote prompts and answers."
    )
    drain_seconds: float = Field(5.0, ge=0, description="Seconds for running calls to finish on SIGTERM.")

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Describe fields by the table's `Option`, where a class gives no description."""
        for field in cls.model_fields.values():
            table = [data.help for data in field.metadata if isinstance(data, Option)]
            field.description = field.description or next(iter(table), None)

    @property
    def tls(self) -> ServerTls:
        return ServerTls(*map(as_path, (self.tls_certificate, self.tls_key, self.tls_client_ca)))

    @classmethod
    def load(cls, program: str, argv: Sequence[str]) -> Self:
        """Read settings: flags override the environment. `--help` prints help and exits."""
        given = read_flags(program, cls, argv)
        prefix = cls.model_config.get("env_prefix", "")
        for name in os.environ:
            if prefix and name.startswith(prefix) and name[len(prefix) :].lower() not in cls.model_fields:
                raise SettingError(name, os.environ[name], "unknown setting; see --help")
        try:
            settings = cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            (key,) = first["loc"][:1] or ("settings",)
            of_key = dict.fromkeys(other["msg"] for other in error.errors() if other["loc"][:1] == (key,))
            raise SettingError(str(key), first.get("input"), " or ".join(of_key) or first["msg"]) from error
        settings.check()
        return settings

    @classmethod
    def as_given(cls, error: SettingError, argv: Sequence[str]) -> SettingError:
        """Rename an error's field to the flag or variable that was given."""
        if error.field not in cls.model_fields:
            return error
        flag = f"--{error.field.replace('_', '-')}"
        variable = f"{cls.model_config.get('env_prefix', '')}{error.field}".upper()
        flags = {argument.partition("=")[0] for argument in argv}
        return error.renamed(variable if variable in os.environ and flag not in flags else flag)

    def check(self) -> None:
        """Check settings that pydantic cannot check by itself."""
        check_values(self)
        check_target("listen", self.listen, lowest_port=0)
        self.tls.check()


class ServiceSettings(ProcessSettings):
    """Settings of every gRPC service."""

    group: ClassVar[str] = "Metrics and traces"

    metrics_port: MetricsPort = 0
    metrics_host: str = Field(
        "127.0.0.1", description="Address of the Prometheus endpoint; 0.0.0.0: all interfaces."
    )
    otlp_endpoint: str = Field(
        "",
        description="OpenTelemetry collector for traces (OTLP over gRPC), for example "
        "http://127.0.0.1:4317; empty: no traces. Needs the extra `tracing`.",
    )


def as_path(text: str) -> Path | None:
    """Return the path of a file setting; None if empty."""
    return Path(text) if text else None


def exit_with(error: SettingError, program: str) -> None:
    """Print the error, and exit with code 2."""
    print(f"{program}: error: {error}", file=sys.stderr)
    sys.exit(2)
