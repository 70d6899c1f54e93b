"""Read the flags of a service with typer, which also prints its `--help`."""

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from specinfer.errors import SettingError
from specinfer.options.option_names import no_such_option
from specinfer.options.usage import USAGE_ERROR, usage_message

_ALL = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}


def read_flags(program: str, settings: type[BaseSettings], argv: Sequence[str]) -> dict[str, Any]:
    """Return the values of the given flags by field: texts, or bools for switches.

    Prints help and exits for `--help`.

    Raises:
        SettingError: for an unknown flag, with a similar one, and for a flag without its value.
    """
    given: dict[str, Any] = {}

    def take(**values: Any) -> bool:
        given.update({name: value for name, value in values.items() if value is not None})
        return True

    types = {"context": typer.Context, **_flags(settings)}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in types.items()
    ]
    take.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    take.__annotations__ = types
    prefix = settings.model_config.get("env_prefix", "")
    about = f"{settings.__doc__}\n\nEvery option is also an environment variable: --log-level is {prefix}LOG_LEVEL."
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(help=about, context_settings=_ALL)(take)
    try:
        if app(list(argv), prog_name=program, standalone_mode=False) is not True:
            raise SystemExit(0)  # after `--help`
    except USAGE_ERROR as error:
        raise SettingError("arguments", list(argv), usage_message(error)) from error
    if rest := given.pop("context").args:
        flag = rest[0].partition("=")[0].strip()
        if not flag:
            raise SettingError("arguments", rest, "must not have an empty argument")
        known = [f"--{name.replace('_', '-')}" for name in settings.model_fields]
        reason = no_such_option(flag, known) if flag.startswith("-") else "follows no option; see --help"
        raise SettingError("arguments", flag, reason)
    return given


def _flags(settings: type[BaseSettings]) -> dict[str, Any]:
    """Return an annotation for typer by field, those of subclasses first."""
    flags: dict[str, Any] = {}
    for owner in settings.__mro__:
        for name in vars(owner).get("__annotations__", {}):
            if name in settings.model_fields and name not in flags:
                flags[name] = _flag(name, settings.model_fields[name], getattr(owner, "group", ""))
    return flags


def _flag(name: str, field: FieldInfo, group: str) -> Any:
    """Return the annotation of a flag; pydantic checks its value later."""
    flag, switch = name.replace("_", "-"), field.annotation is bool
    default = "none" if field.default in ("", None) else str(field.default).lower()
    option = typer.Option(
        f"--{flag}/--no-{flag}" if switch else f"--{flag}",
        help=f"{field.description} [default: {default}]".replace("[", r"\["),
        rich_help_panel=group,
        metavar=None if switch else _kind(field.annotation),
    )
    return Annotated[bool | None if switch else str | None, option]


def _kind(annotation: Any) -> str:
    """Return a setting's type for `--help`: int, text or a|b."""
    parts = [part for part in get_args(annotation) if isinstance(part, str | type) or get_args(part)]
    if parts:
        return "|".join(part if isinstance(part, str) else _kind(part) for part in parts)
    return "text" if annotation is str else annotation.__name__
