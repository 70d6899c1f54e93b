"""What a text must look like, as the message that asks for it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from specinfer.errors import InvalidInputError
from specinfer.v1 import common_pb2

KINDS = ("json_schema", "regex", "grammar", "choice")


class ConstraintOptions(TypedDict, total=False):
    """Ways to say it; one of them excludes the others. The gateway checks the values."""

    json_schema: str | Mapping[str, Any]
    """JSON that this schema describes."""
    regex: str
    """Text that a regular expression (Rust's notation) matches as a whole."""
    grammar: str
    """Text of a grammar in Lark's notation, beginning with the rule `start`."""
    choice: Sequence[str]
    """One of these texts."""


def make_constraint(options: ConstraintOptions) -> common_pb2.Constraint | None:
    """The message; None if the text is free.

    Raises:
        InvalidInputError: if it is said in two ways, or is no JSON.
    """
    said: Mapping[str, Any] = {**options}
    given = [(kind, said[kind]) for kind in KINDS if kind in said]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInputError(given[1][0], given[0][0], "only one of them may be given")
    ((kind, source),) = given
    if kind == "choice":
        return common_pb2.Constraint(choice=common_pb2.Choice(texts=source))
    fields: dict[str, Any] = {kind: source if isinstance(source, str) else _encode(source)}
    return common_pb2.Constraint(**fields)


def _encode(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("json_schema", str(schema), f"no JSON: {error}") from error
