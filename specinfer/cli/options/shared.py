"""Options of several commands, and mutual exclusions."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from specinfer.cli.bench import MODES
from specinfer.cli.connection import API_KEY_VARIABLE, Connection
from specinfer.cli.local.options import LocalOptions
from specinfer.drafters.pools import Flags
from specinfer.errors import InvalidInputError
from specinfer.model.formats.registry import FORMATS, unknown_format
from specinfer.options.flag_groups import LOCAL
from specinfer.options.model_options import (
    DEFAULT_RULE,
    DRAFT_HELP,
    Acceptance,
    ModelOptions,
    Offload,
    Option,
    as_text,
)
from specinfer.service.tls import ClientTls
from specinfer.system.atomic_files import private
from specinfer.system.running import running_servers

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_PATIENCE_S = 60.0
GATEWAY = "Gateway"
GATEWAY_OPTIONS = ("address", "tls_ca", "tls_cert", "tls_key")
"""Parameters for reaching a running gateway."""


Address = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=GATEWAY,
        help="Address of a running gateway, or of several that share a Redis, separated by commas. Not given: the "
        f"server that you started last, else {DEFAULT_ADDRESS}.",
    ),
]
PatienceSeconds = Annotated[
    float,
    typer.Option(
        "--patience-seconds",
        min=0.0,
        rich_help_panel=GATEWAY,
        help="Time for which a lost connection is retried; 0: no retries.",
    ),
]
SpeculatorAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--speculator-address",
        rich_help_panel=LOCAL,
        help="Address of a running speculator service to use in addition to started ones; may be repeated.",
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send prompts without the chat template, for base models.")]
Speculators = Annotated[
    list[str] | None,
    typer.Option(
        "--speculator",
        rich_help_panel=LOCAL,
        help="Speculator service, instead of the default ones: DRAFTER[+DRAFTER...][,FLAG=VALUE...] or none; "
        "may be repeated. "
        "Example: ssm,model=ssm-smollm2-135m or custom,function=my_drafts:repeat_last".replace("[", r"\["),
    ),
]
DraftFlag = Annotated[
    str | None,
    Option(f"{DRAFT_HELP} Not given: auto, or none with --speculator."),
]


def format_name(text: str) -> str:
    """Check a weight format's name; errors about old names suggest new ones."""
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} {unknown_format(text)}")
    return text


@dataclass(frozen=True)
class LocalFlags(ModelOptions):
    """Flags of a local system's model; `device` is empty if not given."""

    panel: ClassVar[str] = LOCAL
    further: ClassVar[Mapping[str, Any]] = {
        "weights": {"parser": format_name, "autocompletion": lambda: list(FORMATS), "metavar": "FORMAT"}
    }

    device: Annotated[str, Option("Torch device, for example cpu, cuda or cuda:1; not given: cpu.")] = ""
    offload: Offload = "none"
    acceptance: Acceptance = DEFAULT_RULE

    def system(self, model: str, verifier: Flags | None = None, **more: Any) -> LocalOptions:
        """Return the options of a local system, with further flags of its verifier."""
        own = {name: value for name, value in asdict(self).items() if name not in ("dtype", "device")}
        flags = {name.replace("_", "-"): as_text(value) for name, value in own.items()} | dict(verifier or {})
        return LocalOptions(model, self.dtype, self.device or None, verifier=flags, **more)

    @property
    def here(self) -> dict[str, Any]:
        """Options of an `LLM`."""
        return {**asdict(self), "device": self.device or "cpu"}


@dataclass(frozen=True)
class TlsFlags:
    """Flags of TLS connections."""

    panel: ClassVar[str] = GATEWAY

    tls_ca: Annotated[Path | None, Option("PEM file of the gateway's authorities; switches on TLS.")] = None
    tls_cert: Annotated[Path | None, Option("PEM file of a certificate, if the gateway requires one.")] = None
    tls_key: Annotated[Path | None, Option("PEM file of that certificate's private key.")] = None

    @property
    def tls(self) -> ClientTls | None:
        """Checked TLS settings; None without TLS flags."""
        tls = ClientTls(self.tls_ca, self.tls_cert, self.tls_key)
        tls.check()
        return tls if tls.wanted else None


@dataclass(frozen=True)
class AccessFlags(TlsFlags):
    """Flags of the access to a running gateway."""

    further: ClassVar[Mapping[str, Any]] = {"api_key": {"envvar": API_KEY_VARIABLE, "show_default": False}}

    api_key: Annotated[
        str | None,
        Option(
            "Key for a gateway that requires one. Other users of the machine can read options, but not the variable."
        ),
    ] = None

    def connection(self, addresses: str, traceparent: str = "") -> Connection:
        """Return a connection to gateways at these addresses."""
        return Connection(addresses, self.api_key, self.tls, traceparent)

    def reach(self, given: str | None, traceparent: str = "") -> Connection:
        """Return a connection to the given gateways, or to this user's latest server."""
        servers = [] if self.tls else running_servers()
        here = servers[-1].address if servers else DEFAULT_ADDRESS
        return self.connection(given or here, traceparent)


LOCAL_OPTIONS = ("model", *(field.name for field in fields(LocalFlags)), "speculator", "draft")
"""Parameters for a local system, refused with a running gateway."""


def refuse_with(context: typer.Context, options: tuple[str, ...], reason: str) -> None:
    """Refuse options that have no effect with another option."""
    for name in options:
        if was_given(context, name):
            value = context.params[name]
            flag = "--" + name.replace("_", "-")
            raise InvalidInputError(flag, str(value) if isinstance(value, Path) else value, reason)


def was_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter was given on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def read_modes(field: str, text: str) -> tuple[str, ...]:
    """Return the modes of a comma-separated list."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in MODES:
            raise InvalidInputError(field, name, f"must be some of {','.join(MODES)}")
    if len(set(names)) < len(names):
        raise InvalidInputError(field, text, "must name each mode once")
    return names


def read_numbers(field: str, text: str) -> tuple[int, ...]:
    """Return the positive numbers of a comma-separated list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidInputError(field, text, "must be positive integers such as 1,4")
    return tuple(map(int, parts))


def check_positive(field: str, value: int | None) -> int | None:
    """Return a value that is positive or None."""
    if value is not None and value <= 0:
        raise InvalidInputError(field, value, "must be positive")
    return value


def check_writable(field: str, path: Path) -> None:
    """Create a result's directory and file before a long run."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        open(path, "ab", opener=private).close()
    except OSError as error:
        raise InvalidInputError(field, str(path), f"cannot be written: {error.strerror or error}") from error
