"""Flags of `specinfer up`: options of verifier, gateway and HTTP service."""

from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from specinfer.cli.options.shared import LocalFlags
from specinfer.drafters.pools import Flags
from specinfer.options.door_options import GatewayOptions, HttpOptions
from specinfer.options.model_options import ServedOptions, as_text


@dataclass(frozen=True)
class UpFlags(LocalFlags, ServedOptions):
    """Flags of the verifier; the model and its draft are given otherwise."""

    not_flags: ClassVar[tuple[str, ...]] = ("model", "draft")


@dataclass
class GatewayFlags(GatewayOptions):
    """Flags of the gateway."""

    panel: ClassVar[str] = GatewayOptions.group
    not_flags: ClassVar[tuple[str, ...]] = ("chat_template",)


@dataclass
class HttpFlags(HttpOptions):
    """Flags of the HTTP service."""

    panel: ClassVar[str] = HttpOptions.group
    not_flags: ClassVar[tuple[str, ...]] = ()


def changed(options: UpFlags | GatewayFlags | HttpFlags) -> Flags:
    """Return the flags of a service whose values are not the defaults."""
    usual = {field.name: field.default for field in fields(options)}
    return {
        name.replace("_", "-"): as_text(value)
        for name, value in asdict(options).items()
        if value not in (usual[name], "") and name not in options.not_flags
    }
