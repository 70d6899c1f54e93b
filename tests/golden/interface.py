"""List every name that users rely on, with its default: `python -m tests.golden.interface` rewrites `interface.txt`.

A line is lost, renamed or changed only on purpose: a change of this file says which.
"""

import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from typer.main import get_command

from all_in_one.settings import ServeSettings
from gateway.settings import GatewaySettings
from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.body.tokens import DetokenizeBody, TokenizeBody
from http_svc.items.body import ResponsesBody
from http_svc.settings import HttpSettings
from specinfer.cli.main import app
from specinfer.client import make_request
from specinfer.drafters import DrafterOptions
from specinfer.integrations.vllm.settings import PREFIX, VllmSettings
from specinfer.llm import LLM, SamplingParams
from specinfer.llm.options import LLMOptions
from specinfer.service.settings import ProcessSettings
from specinfer.training.__main__ import app as training
from specinfer.v1 import common_pb2
from speculator_svc.settings import SpeculatorSettings
from tests.golden.requests import MESSAGES
from verifier_svc.settings import VerifierSettings

FILE = Path(__file__).with_suffix(".txt")
SERVICES: tuple[type[ProcessSettings], ...] = (
    *(ServeSettings, VerifierSettings, GatewaySettings, SpeculatorSettings, HttpSettings),
)
BODIES = (ChatBody, CompletionBody, ResponsesBody, TokenizeBody, DetokenizeBody)


def interface() -> str:
    """Return all lines."""
    parts = (_settings, _commands, _bodies, _python, _messages)
    return "".join(f"{line}\n" for part in parts for line in part())


def _settings() -> Iterator[str]:
    for settings in SERVICES:
        prefix = settings.model_config.get("env_prefix", "")
        schema = settings.model_json_schema()["properties"]
        for name in sorted(settings.model_fields):
            shown = {k: v for k, v in schema[name].items() if k not in ("description", "title")}
            yield f"setting {prefix}{name.upper()} {json.dumps(shown, sort_keys=True)}"
    for name, field in VllmSettings.model_fields.items():
        yield f"setting {PREFIX}{name.upper()} {field.default!r}"


def _commands(command: Any = None, path: str = "specinfer") -> Iterator[str]:
    if command is None:
        yield from _commands(get_command(app), path)
        yield from _commands(get_command(training), f"{path} train")
        return
    for parameter in sorted(command.params, key=lambda parameter: str(parameter.name)):
        default = getattr(parameter.default, "value", parameter.default)
        bounds = [parameter.min, parameter.max]
        rest = ([] if bounds == [None, None] else bounds, parameter.envvar, "repeated" * parameter.multiple)
        names = " ".join(parameter.opts + parameter.secondary_opts)
        kind = _kind(parameter.type_descriptor.annotation)
        yield f"command {path} {names} = {default!r} {kind} {' '.join(str(r) for r in rest if r)}".rstrip()
    for name, one in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(one, f"{path} {name}")


def _kind(annotation: Any) -> str:
    """Return a parameter's type; the values of a choice."""
    values = get_args(annotation) or getattr(annotation, "__members__", {}).values()
    return "|".join(str(value) for value in values) or annotation.__name__


def _bodies() -> Iterator[str]:
    for body in BODIES:
        for name, schema in sorted(body.model_json_schema()["properties"].items()):
            shown = {k: v for k, v in schema.items() if k not in ("description", "title")}
            yield f"body {body.__name__}.{name} {json.dumps(shown, sort_keys=True)}"


def _python() -> Iterator[str]:
    for options in (LLMOptions, DrafterOptions, SamplingParams):
        made: Any = options()
        for field in sorted(fields(options), key=lambda field: field.name):
            yield f"python {options.__name__}.{field.name} = {getattr(made, field.name)!r}"
    for function in (LLM, make_request):
        for name, parameter in sorted(inspect.signature(function).parameters.items()):
            default = parameter.default
            if not callable(default):
                yield f"python {function.__qualname__}({name}) = {default!r}"


def _messages() -> Iterator[str]:
    """Yield the messages without any field set, and by field the words that it adds."""
    default: list[str] = []
    for name, message in MESSAGES.items():
        words = str(message()).split()
        if " " not in name:
            default, shown = words, words
        else:
            shown = [word for word in words if word not in default]
        yield f"message {name}: {' '.join(shown)}"
    for field in common_pb2.SamplingParams.DESCRIPTOR.fields:
        yield f"wire SamplingParams.{field.name} = {field.number}"


if __name__ == "__main__":
    FILE.write_text(interface())
