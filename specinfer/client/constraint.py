"""What a text must look like, as the message that asks for it."""

import json
from collections.abc import Mapping
from typing import Any

from specinfer.errors import InvalidInputError
from specinfer.v1 import common_pb2

KINDS = ("json_schema", "regex", "grammar", "choice")


def make_constraint(options: Mapping[str, Any]) -> common_pb2.Constraint | None:
    """The message; None if the text is free.

    Raises:
        InvalidInputError: if it is said in two ways, or is no JSON.
    """
    given = [(kind, options[kind]) for kind in KINDS if options.get(kind) is not None]
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
