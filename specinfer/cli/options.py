"""Options that several commands share, and those that exclude each other."""

from enum import StrEnum
from typing import Annotated

import typer

from specinfer.errors import InvalidInputError

DEFAULT_ADDRESS = "127.0.0.1:50051"
LOCAL_OPTIONS = ("model", "dtype", "weights", "device", "speculator")
"""Options that say what a local system runs; a running gateway has that already."""


class SpeculationChoice(StrEnum):
    """How a request may be speculated on."""

    TREE = "tree"
    SEQUENCE = "sequence"
    OFF = "off"


class Source(StrEnum):
    """Where a registered model comes from."""

    WHEEL = "wheel"
    HUB = "hub"


Address = Annotated[str, typer.Option(help="Address of a running gateway.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Send prompts as they are, without chat template, as base models need.")
]
Model = Annotated[str, typer.Option(help="Registry name, hub id, directory or GGUF file.")]
Speculators = Annotated[
    list[str] | None,
    typer.Option(
        "--speculator",
        help="DRAFTER[+DRAFTER...][,FLAG=VALUE...] instead of the usual pool; may be repeated. "
        "Example: ssm,model=ssm-smollm2-135m or custom,function=my_drafts:repeat_last".replace("[", r"\["),
    ),
]
Dtype = Annotated[
    str, typer.Option(help="Numeric type of a local system: float32, bfloat16 or float16 (torch executor).")
]
Weights = Annotated[
    str,
    typer.Option(
        help="Of a local verifier: converted (as --dtype says); native (the 4- or 8-bit blocks of a GGUF "
        "model); int8, int4 or w8a8 (quantised while loading, which makes another target)."
    ),
]
LocalDevice = Annotated[
    str | None,
    typer.Option(
        "--device", help="Where models of a local system run: cpu, cuda or another torch device; default cpu."
    ),
]


def refuse_with(context: typer.Context, options: tuple[str, ...], why: str) -> None:
    """Refuses options that would be ignored.

    Raises:
        InvalidInputError: naming the first of `options` (names of parameters) that the user gave.
    """
    for name in options:
        if was_given(context, name):
            flag = "--" + name.replace("_", "-")
            raise InvalidInputError(flag, context.params[name], why)


def was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
