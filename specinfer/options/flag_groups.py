"""Turn dataclasses of options into flags of commands.

A command takes whole groups: dataclasses whose fields are described by the table's `Option` or by `typer.Option`. A
group may have `panel` (heading in the help), `not_flags` and `further` (arguments of `typer.Option` by field).
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import typer

from specinfer.options.model_options import ModelOptions, Option, check_values, option_of

LOCAL = "Local system"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with a flag for each field of its groups."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)
    }
    flags = [flag for p in signature.parameters.values() for flag in _flags(p)]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        values = {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}
        for name, group in groups.items():
            texts = {field.name: values.pop(field.name, None) for field in _shown(group)}
            values[name] = group(**{name: text for name, text in texts.items() if text is not None})
            if isinstance(values[name], ModelOptions):
                check_values(values[name])
        command(**values)

    cast(Any, call).__signature__ = signature.replace(parameters=flags)
    call.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return call


def _flags(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the flags of a command's parameter: those of its fields, or itself."""
    group, kind = parameter.annotation, inspect.Parameter.KEYWORD_ONLY
    if not is_dataclass(group):
        return [parameter.replace(kind=kind, annotation=_typed(parameter.name, parameter.annotation, LOCAL))]
    hints, panel = get_type_hints(group, include_extras=True), getattr(group, "panel", None)
    further = getattr(group, "further", {})
    kinds = {name: _typed(name, hint, panel, **further.get(name, {})) for name, hint in hints.items()}
    return [
        inspect.Parameter(field.name, kind, default=_default(field), annotation=kinds[field.name])
        for field in _shown(group)
    ]


def _number_or_word(text: str | int) -> str | int:
    return int(text) if str(text).isdecimal() else text


def _shown(group: Any) -> list[Field[Any]]:
    """Return the fields of a group that are flags."""
    return [field for field in fields(group) if field.name not in getattr(group, "not_flags", ())]


def _default(field: Field[Any]) -> Any:
    """Return a flag's default; None for an empty one, which the help does not show."""
    if field.default is MISSING:
        return inspect.Parameter.empty
    return None if field.default in ("", ()) else field.default


def _typed(name: str, hint: Any, panel: str | None, **further: Any) -> Any:
    """Return an annotation for typer; those without `Option` stay as they are."""
    option: Option | None = option_of(hint)
    if option is None:
        return hint
    kind, *metadata = get_args(hint)
    ends = {"min": "ge", "max": "le"}
    bounds = {end: getattr(b, key) for b in metadata for end, key in ends.items() if hasattr(b, key)}
    if option.choices:
        kind = cast(Any, StrEnum)(name, {word: word for word in option.choices})
    elif words := [word for part in get_args(kind) if get_origin(part) is Literal for word in get_args(part)]:
        further = {"parser": _number_or_word, "metavar": "|".join(["INTEGER", *words]), **further}
        kind = str
    elif any(get_origin(part) is Sequence for part in get_args(kind)):
        kind = list[str] | None
    further = {"rich_help_panel": option.group or panel, **bounds, **further}
    switch = [f"--{name.replace('_', '-')}"] if kind is bool else []
    return Annotated[kind, typer.Option(*switch, help=option.help.replace("[", r"\["), **further)]
