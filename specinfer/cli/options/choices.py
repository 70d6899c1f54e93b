"""Enums and checks of options with few values, with shell completion."""

from enum import StrEnum
from pathlib import Path

import typer

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


def planner_name(text: str) -> str:
    """Return a planner's name, or the absolute path of its weights."""
    if text in PLANNERS:
        return text
    if not Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(PLANNERS)}, nor a file of weights")
    return str(Path(text).resolve())
