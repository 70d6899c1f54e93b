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
    given = [name for name in KINDS if name in options]
    if len(given) > 1:
        raise InvalidInputError(given[1], given[0], "only one of them may be given")
    if "choice" in options:
        return common_pb2.Constraint(choice=common_pb2.Choice(texts=options["choice"]))
    if "json_schema" in options:
        schema = options["json_schema"]
        return common_pb2.Constraint(json_schema=schema if isinstance(schema, str) else _encode(schema))
    if "regex" in options:
        return common_pb2.Constraint(regex=options["regex"])
    return common_pb2.Constraint(grammar=options["grammar"]) if given else None


def _encode(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("json_schema", str(schema), f"no JSON: {error}") from error
