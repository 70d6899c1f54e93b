"""Flags of one request, from the table of its fields."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from specinfer.errors import InvalidInputError
from specinfer.request.fields import CONSTRAINTS, SPECULATION, TEXT, RequestFields
from specinfer.text.prompts import read_text

PromptFile = Annotated[
    Path | None, typer.Option(help="Read the prompt from this file: UTF-8, without its last line break.")
]
References = Annotated[
    list[Path] | None,
    typer.Option(
        "--reference",
        help="Text file with passages that the answer may copy; may be repeated.",
        rich_help_panel=SPECULATION,
    ),
]
ConstraintText = Annotated[
    str | None,
    typer.Option(
        "--constraint",
        rich_help_panel=TEXT,
        help="Constraint of the answer: json_schema=VALUE, regex=VALUE, grammar=VALUE (Lark) or "
        'choice=["TEXT", ...]; @FILE as VALUE reads a file.'.replace("[", r"\["),
    ),
]


@dataclass(frozen=True)
class RequestFlags(RequestFields):
    """Fields of a request that are flags; the others are given otherwise."""

    not_flags: ClassVar[tuple[str, ...]] = (
        *("chat", "references", *CONSTRAINTS),
        *("logit_bias", "top_logprobs", "priority", "cache_salt"),
    )


def read_constraint(text: str | None) -> dict[str, Any]:
    """Parse a constraint, `KIND=VALUE` or `KIND=@FILE`; {} for None."""
    if text is None:
        return {}
    kind, mark, value = text.partition("=")
    if not mark or kind not in CONSTRAINTS:
        raise InvalidInputError("--constraint", text, f"must begin with one of {'=, '.join(CONSTRAINTS)}=")
    if value.startswith("@"):
        value = read_text("--constraint", Path(value[1:]))
    return {kind: _read_list(value) if kind == "choice" else value}


def _read_list(text: str) -> list[str]:
    try:
        texts = json.loads(text)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise InvalidInputError("--constraint", text, 'must be choice=["TEXT", ...]')
    return texts
