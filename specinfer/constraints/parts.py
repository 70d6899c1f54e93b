"""Location of the cause in a refused JSON schema."""

import json
from collections.abc import Iterator
from typing import Any

from specinfer.constraints.compiler import Compiler
from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.errors import InvalidInputError


def part_of(compiler: Compiler, constraint: Constraint) -> str:
    """Return " (at #/...)", the smallest part of a refused schema that is refused by itself.

    Empty if the source is no schema, or only the whole is refused.
    """
    if constraint.kind is not ConstraintKind.JSON_SCHEMA:
        return ""
    try:
        schema = json.loads(constraint.source)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(schema, dict):
        return ""
    pointer, part = "", schema
    while (found := next(_refused(compiler, part, schema), None)) is not None:
        pointer, part = f"{pointer}/{found[0]}", found[1]
    return f" (at #{pointer})" if pointer else ""


def _refused(compiler: Compiler, part: Any, schema: Any) -> Iterator[tuple[str, Any]]:
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    for step, below in _schemas_in(part):
        alone = definitions | below
        try:
            compiler.compile(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(alone)))
        except InvalidInputError:
            yield step, below


def _schemas_in(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the schemas directly below one, by the steps of their JSON pointers."""
    for name, value in part.items():
        if isinstance(value, dict):
            if name in ("properties", "patternProperties", "$defs", "definitions"):
                yield from [(f"{name}/{key}", one) for key, one in value.items() if isinstance(one, dict)]
            else:
                yield name, value
        elif isinstance(value, list):
            yield from [(f"{name}/{i}", one) for i, one in enumerate(value) if isinstance(one, dict)]
