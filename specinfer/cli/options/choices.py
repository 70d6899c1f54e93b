"""Enums and checks of options with few values, with shell completion."""

from enum import StrEnum
from pathlib import Path

import typer

from specinfer.model.formats.registry import FORMATS, unknown_format
from specinfer.planning import PLANNERS


class SpeculationChoice(StrEnum):
    TREE = "tree"
    SEQUENCE = "sequence"
    OFF = "off"


class Source(StrEnum):
    """Source of a registered model."""

    AUTO = "auto"
    WHEEL = "wheel"
    HUB = "hub"


class DtypeChoice(StrEnum):
    """Numeric type of a model."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def format_name(text: str) -> str:
    """Check a weight format's name; errors about old names suggest new ones."""
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} {unknown_format(text)}")
    return text


def format_names() -> list[str]:
    """Return the names of all formats, for the shell's completion."""
    return list(FORMATS)


class OffloadChoice(StrEnum):
    """Where layers of a model larger than the device are stored."""

    NONE = "none"
    HOST = "host"
    DISK = "disk"


class KvTypeChoice(StrEnum):
    """Number format of the KV cache."""

    AUTO = "auto"
    BF16 = "bf16"
    Q8_0 = "q8_0"


def planner_name(text: str) -> str:
    """Return a planner's name, or the absolute path of its weights."""
    if text in PLANNERS:
        return text
    if not Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(PLANNERS)}, nor a file of weights")
    return str(Path(text).resolve())
