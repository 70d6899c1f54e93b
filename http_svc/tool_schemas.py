"""Prepare the JSON schemas of functions' parameters for llguidance."""

import re
from collections.abc import Sequence
from typing import Any

from http_svc.body.tools import Function
from specinfer.text.constraints.schemas import NAMED_SCHEMAS, NOTES, VALUES

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance's options: JSON with fixed white space."""
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_LOOKS_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]")
"""Syntax missing in Rust's regular expressions: look-around and back-references."""


def followed(function: Function) -> dict[str, Any]:
    """Return the schema that constrains the arguments of a call.

    It has no texts for people. Unless the function is strict, unsupported keywords are removed. The prompt still
    shows all of them to the model.
    """
    schema = _NO_ARGUMENTS if function.parameters is None else {"type": "object"} | function.parameters
    lenient = not function.strict
    return {**_bare(schema, lenient), "x-guidance": _COMPACT | ({"lenient": True} if lenient else {})}


_OF_GRAMMAR = re.compile(
    r"tools = .{117}\.\.\.: (?:at line (?P<line>\d+), column \d+: (?:failed to compile JSON schema: )?)?(?P<why>.*)",
    re.DOTALL,
)
"""An error of a grammar of calls, which quotes its beginning."""


def name_function(message: str, functions: Sequence[Function], form: str) -> str:
    """Replace the grammar in an error by what the error concerns.

    Args:
        message: the error, renamed.
        functions: the functions of the grammar's first lines.
        form: field of the next line's form.
    """
    match = _OF_GRAMMAR.fullmatch(message)
    if match is None:
        return message
    line = int(match["line"] or 0)
    if 0 < line <= len(functions):
        return f"tools: function {functions[line - 1].name!r}: {match['why']}"
    return f"{form if line == len(functions) + 1 else 'tools'}: {match['why']}"


def _bare(schema: Any, lenient: bool) -> Any:
    """Remove keywords that constrain nothing.

    If lenient, patterns are removed that Rust's regular expressions cannot express.
    """
    if isinstance(schema, list):
        return [_bare(part, lenient) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key in NOTES or (lenient and _is_beyond(key, value)):
            continue
        if key in NAMED_SCHEMAS and isinstance(value, dict):
            kept[key] = {name: _bare(part, lenient) for name, part in value.items()}
        else:
            kept[key] = value if key in VALUES else _bare(value, lenient)
    return kept


def _is_beyond(key: str, value: Any) -> bool:
    if key == "patternProperties" and isinstance(value, dict):
        return any(map(_LOOKS_AROUND.search, value))
    return key == "pattern" and isinstance(value, str) and bool(_LOOKS_AROUND.search(value))
