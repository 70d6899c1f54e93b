"""Parse the project's commands with their own parsers, without running them."""

import contextlib
import re
import shlex
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from all_in_one.settings import ServeSettings, named_model
from gateway.settings import GatewaySettings
from http_svc.settings import HttpSettings
from specinfer.cli.main import app
from specinfer.drafters import DRAFTERS
from specinfer.drafters.draft import names_drafters
from specinfer.drafters.pools import read_speculators
from specinfer.errors import SpecInferError
from specinfer.options.service_flags import read_flags
from specinfer.options.usage import USAGE_ERROR, usage_message
from specinfer.planning.learned_training import train_scheduler
from specinfer.service.settings import ProcessSettings
from specinfer.training.__main__ import app as training
from speculator_svc.settings import SpeculatorSettings
from tests.docs.blocks import ROOT
from verifier_svc.settings import VerifierSettings

SERVICES: Mapping[str, type[ProcessSettings]] = {
    "gateway": GatewaySettings,
    "verifier_svc": VerifierSettings,
    "speculator_svc": SpeculatorSettings,
    "http_svc": HttpSettings,
    "all_in_one": ServeSettings,
}
OTHER_TREES = ("benchmarks", "deploy", "tests", "specinfer")
"""Packages that contain programs without a settings class."""
FLAG = re.compile(r"--[a-z][\w-]*")


def fault(words: Sequence[str], partial: bool = False) -> str | None:
    """Return the error of a command of the project; None if it is correct.

    Args:
        partial: required arguments may be missing, as in prose.
    """
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    rest = [word for word in rest if word != "..."]
    try:
        match program, rest:
            case "specinfer", ["serve", *arguments]:
                _read_settings("all_in_one", named_model(arguments))
            case "specinfer", ["train", "scheduler", *arguments]:
                _parse(_scheduler(), arguments, partial)
            case "specinfer", ["train", *arguments]:
                _parse(get_command(training), arguments, partial)
            case "specinfer", arguments:
                _parse(get_command(app), arguments, partial)
            case "python" | "torchrun", arguments:
                module, *arguments = rest[rest.index("-m") + 1 :]
                _module(module, arguments)
            case "make", targets:
                missing = {target for target in targets if "=" not in target} - make_targets()
                return f"the Makefile has no {missing}" if missing else None
            case "pip", ["install", *wanted]:
                return _pip_fault(wanted)
            case _:
                return f"no program of ours: {program}"
    except SystemExit as error:
        return f"ended with {error.code}" if error.code else None  # of --help
    except USAGE_ERROR as error:
        return usage_message(error) or "help instead of a command"
    except (SpecInferError, ValueError) as error:
        return str(error)
    return None


def is_ours(words: Sequence[str]) -> bool:
    """Return whether a command is one of the project's."""
    program = words[0].removeprefix(".venv/bin/")
    return program in ("specinfer", "make", "pip") or (program in ("python", "torchrun") and "-m" in words)


def unwrapped(words: Sequence[str]) -> Sequence[str]:
    """Return the `specinfer` command that docker or kubectl runs in an image; other commands unchanged."""
    if words[0] in ("docker", "kubectl") and "run" in words:
        for place, word in enumerate(words):
            if word.startswith("specinfer-tools"):
                return ["specinfer", *(argument for argument in words[place + 1 :] if argument != "--")]
    return words


@cache
def known_flags() -> frozenset[str]:
    """Return all flags of all programs of the project."""
    flags = {
        f"--{yes_no}{name.replace('_', '-')}"
        for settings in SERVICES.values()
        for name in settings.model_fields
        for yes_no in ("", "no-")
    }
    for command in (get_command(app), get_command(training), _scheduler()):
        flags |= _flags_of(command)
    for tree in ("benchmarks", "tests/chaos", "specinfer/service", "specinfer/model/native", "http_svc"):
        flags |= {flag for path in (ROOT / tree).rglob("*.py") for flag in FLAG.findall(path.read_text())}
    return frozenset(flags | {"--help"})


def _flags_of(command: Any) -> set[str]:
    within = [_flags_of(subcommand) for subcommand in getattr(command, "commands", {}).values()]
    flags = {flag for subcommand in command.params for flag in (*subcommand.opts, *subcommand.secondary_opts)}
    return flags.union(*within)


@cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _pip_fault(wanted: Sequence[str]) -> str | None:
    """Return the error of a pip command: an unknown extra, or this package from an index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requirement in wanted:
        name, _, within = requirement.rstrip("]").partition("[")
        if name == "specinfer":
            return "specinfer is in no index: say ."
        if name.startswith("$"):
            return f"no page sets {name}"
        missing = set(within.split(",")) - set(extras) - {""}
        if name == "." and missing:
            return f"there is no extra {missing}"
    return None


def _read_settings(module: str, arguments: Sequence[str]) -> None:
    """Parse flags as the service does; files that they name may be missing."""
    SERVICES[module](**read_flags(module, SERVICES[module], arguments))


def _module(module: str, arguments: Sequence[str]) -> None:
    if module in SERVICES:
        return _read_settings(module, arguments)
    if module == "benchmarks":
        name, *arguments = arguments
        module = f"benchmarks.{name}"
    if module in ("build", "pytest"):  # of others
        return None
    spec = find_spec(module) if module.partition(".")[0] in OTHER_TREES else None
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no module {module}")
    source = Path(spec.origin)
    files = source.parent.rglob("*.py") if source.name == "__init__.py" else source.parent.glob("*.py")
    text = "".join(path.read_text() for path in files)
    for flag in FLAG.findall(shlex.join(arguments)):
        if flag not in text and flag[2:].replace("-", "_") not in text:
            raise ValueError(f"{module} has no {flag}")
    return None


def _scheduler() -> Any:
    alone = typer.Typer()
    alone.command()(train_scheduler)
    return get_command(alone)


def _check_drafters(text: str) -> None:
    """Parse the drafters that an option names, with their flags, as the speculator service does."""
    for flags in (read_speculators([text]) or {}).values():
        _read_settings("speculator_svc", [f"--{flag}={value}" for flag, value in flags.items()])
        unknown = set(flags["drafter"].split("+")) - set(DRAFTERS)
        if unknown:
            raise ValueError(f"there is no drafter {', '.join(unknown)}")


def _notes(command: Any) -> list[dict[str, Any]]:
    """Replace the action of a command and its subcommands: it appends the parameters to the returned list."""
    noted: list[dict[str, Any]] = []

    def note(value: Any) -> None:
        value.callback = lambda *_, **given: noted.append(given)
        for inner in getattr(value, "commands", {}).values():
            note(inner)

    note(command)
    return noted


def _parse(command: Any, arguments: Sequence[str], partial: bool) -> None:
    """Parse arguments with typer without running the command; create missing files."""
    noted = _notes(command)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for _ in range(len(arguments) + 1):
            noted.clear()
            try:
                command.main(list(arguments), standalone_mode=False)
            except USAGE_ERROR as error:
                missing = re.search(r"(?:File|Path) '(.+)' does not exist", usage_message(error))
                if not missing:
                    if partial and re.search("^Missing|requires an argument|^$", usage_message(error)):
                        return
                    raise
                Path(missing[1]).touch()
            else:
                break
    for given in noted:
        drafters = [
            *(given.get("speculator") or ()),
            *([given["draft"]] if names_drafters(given.get("draft") or "") else ()),
        ]
        for text in drafters:
            if text and text != "none":
                _check_drafters(text)
