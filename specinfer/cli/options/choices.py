"""Values of options that have only a few: enums, which the shell completes and typer checks."""

from enum import StrEnum

import typer

from specinfer.model.formats.registry import FORMATS, unknown_format


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


class PlannerChoice(StrEnum):
    """Expectation of accepted tokens."""

    MEASURED = "measured"
    LEARNED = "learned"
