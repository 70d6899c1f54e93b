"""Print a service's `--help`: settings in groups, in typer's style."""

from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specinfer.service.settings import ProcessSettings


def print_help(program: str, settings: type[ProcessSettings]) -> None:
    """Print a service's usage, purpose and options."""
    prefix = settings.model_config.get("env_prefix", "")
    about = f"{settings.__doc__}\n\nEvery option is also an environment variable: --log-level is {prefix}LOG_LEVEL."
    head = Text.assemble((" Usage: ", "yellow"), (f"{program} [OPTIONS]", "bold"))
    panels = [_panel(title, fields) for title, fields in _groups(settings).items()]
    console = Console(highlight=False)
    console.print(Group("", head, "", Padding(Text(about), (0, 1)), "", *panels))


def _groups(settings: type[ProcessSettings]) -> dict[str, dict[str, FieldInfo]]:
    """Return the fields by `group` of their class, subclasses first."""
    groups: dict[str, dict[str, FieldInfo]] = {}
    for owner in settings.__mro__:
        for name in vars(owner).get("__annotations__", {}):
            if name in settings.model_fields and not any(name in fields for fields in groups.values()):
                groups.setdefault(getattr(owner, "group", ""), {})[name] = settings.model_fields[name]
    return groups


def _panel(title: str, fields: dict[str, FieldInfo]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="bold cyan")
    table.add_column(style="bold yellow")
    table.add_column(ratio=1)
    for name, field in fields.items():
        flag, kind = name.replace("_", "-"), _kind(field.annotation)
        default = "none" if field.default in ("", None) else str(field.default).lower()
        description = Text(f"{field.description or ''} ").append(f"[default: {default}]", style="dim")
        flags, kind = (f"--[no-]{flag}", "") if kind == "bool" else (f"--{flag}", kind)
        table.add_row(Text(flags), kind, description)
    return Panel(table, title=title, title_align="left", box=box.ROUNDED, border_style="dim")


def _kind(annotation: Any) -> str:
    """Return a setting's type for `--help`: int, text or a|b."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    parts = [part for part in get_args(annotation) if part is not NoneType]
    if parts and not isinstance(annotation, type):
        return "|".join(_kind(part) for part in parts if isinstance(part, type) or get_origin(part))
    return {"str": "text"}.get(getattr(annotation, "__name__", ""), getattr(annotation, "__name__", "text"))
