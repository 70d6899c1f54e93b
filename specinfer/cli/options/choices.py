"""Values of options that have only a few: enums, which the shell completes and typer checks."""

from enum import StrEnum
from pathlib import Path

import typer

from specinfer.model.formats.registry import FORMATS, unknown_format
from specinfer.planning import PLANNERS


class SpeculationChoice(StrEnum):
    """Speculation of a request."""

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
    """Return the name of a format of weights, checked; a former name is answered with the one of today."""
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} {unknown_format(text)}")
    return text


def format_names() -> list[str]:
    """Return the names of all formats, for the shell's completion."""
    return list(FORMATS)


class OffloadChoice(StrEnum):
    """Place of the layers of a model that is larger than the device."""

    NONE = "none"
    HOST = "host"
    DISK = "disk"


class KvTypeChoice(StrEnum):
    """Storage of keys and values."""

    AUTO = "auto"
    BF16 = "bf16"
    Q8_0 = "q8_0"


def planner_name(text: str) -> str:
    """Return the name of a planner, or the whole path of a file of weights."""
    if text in PLANNERS:
        return text
    if not Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(PLANNERS)}, nor a file of weights")
    return str(Path(text).resolve())
