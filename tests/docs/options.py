"""Build the table of all options, with the programs among `serve`, `up`, `LLM` and the services that have them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from typer.main import get_command

from all_in_one.settings import ServeSettings
from gateway.settings import GatewaySettings
from http_svc.settings import HttpSettings
from specinfer.cli.main import app
from specinfer.llm.options import LLMOptions
from specinfer.service.settings import ProcessSettings
from speculator_svc.settings import SpeculatorSettings
from verifier_svc.settings import VerifierSettings

_SERVE = "serve"
PROGRAMS: dict[str, type[ProcessSettings]] = {
    _SERVE: ServeSettings,
    "verifier": VerifierSettings,
    "gateway": GatewaySettings,
    "speculator": SpeculatorSettings,
    "HTTP": HttpSettings,
}
"""Programs with settings, in the order of the table's rows."""
_LLM_NAMES = {
    "max_num_seqs": "max_batch",
    "max_model_len": "max_context_len",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "speculators": "speculator",
}
"""Option names by argument of `LLM`, where the names differ."""
_LLM_ARGUMENTS = ("model", "draft", "speculators")
"""Arguments of `LLM` that are not fields of its options."""
_UP_LISTENS = "gateway"
"""Service to which the address of `up --listen` belongs."""


@dataclass(slots=True)
class Row:
    """An option with one meaning, in one or several programs."""

    name: str
    meaning: str
    switch: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)
    """Defaults by program."""
    up: bool = False
    llm: str = ""

    def __str__(self) -> str:
        programs = [name for name, there in ((_SERVE, _SERVE in self.defaults), ("up", self.up)) if there]
        services = [name for name in self.defaults if name in PROGRAMS and name != _SERVE]
        everywhere = len(services) == len(PROGRAMS) - 1
        cells = (
            f"`--{'[no-]' if self.switch else ''}{self.name.replace('_', '-')}`",
            ", ".join(programs),
            f"`{self.llm}`" if self.llm else "",
            "all" if everywhere else ", ".join(services),
            self._default(),
            " ".join(self.meaning.split()).replace("|", r"\|"),
        )
        return f"| {' | '.join(cells)} |"

    def _default(self) -> str:
        """Return the default; the defaults by program if they differ."""
        texts = {program: _shown(default) for program, default in self.defaults.items()}
        if len(set(texts.values())) == 1:
            return next(iter(texts.values()))
        return ", ".join(f"{text or 'none'} ({program})" for program, text in texts.items())


def options() -> str:
    head = "| option | serve, up | `LLM` | services | default | meaning |\n|---|---|---|---|---|---|"
    return "\n".join([head, *map(str, rows())]) + "\n"


def rows() -> list[Row]:
    """Return one row for each meaning of each option.

    Raises:
        KeyError: if no program has an option for an argument of `LLM`.
    """
    table: dict[tuple[str, str], Row] = {}
    for program, settings in PROGRAMS.items():
        for name, default, meaning, switch in _fields(settings):
            row = table.setdefault((name, meaning), Row(name, meaning, switch))
            row.defaults[program] = default
    for parameter in get_command(app).commands["up"].params:  # type: ignore[attr-defined]
        name = parameter.opts[0].removeprefix("--").replace("-", "_")
        same = [row for row in table.values() if row.name == name]
        if name == "listen":
            same = [row for row in same if _UP_LISTENS in row.defaults]
        if not same:
            meaning = re.sub(r"\\(?=\[)", "", parameter.help or "")
            same = [table.setdefault((name, meaning), Row(name, meaning))]
            same[0].defaults["up"] = parameter.default
        same[0].up = True
    by_name = {row.name: row for row in reversed(table.values())}
    for argument in (*_LLM_ARGUMENTS, *(option.name for option in fields(LLMOptions))):
        by_name[_LLM_NAMES.get(argument, argument)].llm = argument
    return list(table.values())


def _fields(settings: type[ProcessSettings]) -> Iterator[tuple[str, Any, str, bool]]:
    """Yield (name, default, meaning, whether a flag without value) of the settings on a command line."""
    for name, setting in settings.model_fields.items():
        hidden = "CliSuppress" in str(setting.metadata) + str(setting.annotation)
        if not hidden and setting.description is not None:
            yield name, setting.default, setting.description, setting.annotation is bool


def _shown(default: Any) -> str:
    """Return a default in the form that the command line accepts."""
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return "" if default in ("", None, ()) else f"`{text}`"
