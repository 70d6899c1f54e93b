"""Rewrite JSON schemas for llguidance: exact integers, bounded time formats.

llguidance reads numbers as 64-bit floats and writes 64-bit integers. Constants that would change are refused, or
removed if the schema is lenient. Bounds are moved inwards to the next number that llguidance represents.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_CHANGED = re.compile(r'\d{16}|"format"\s*:\s*"(?:date-time|time|duration)"')
"""Text of a schema that may need rewriting."""
_TIMES = ("date-time", "time", "duration")
"""String formats with an unbounded number of digits."""
_MAX_OF_TIME = 64
"""Maximum characters of a string of `_TIMES`."""
_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/(?:\\.|[^/\\])+/|(?P<json>%json\s*(?=[\[{]))')
"""Texts, comments, regular expressions and schemas of a Lark grammar."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
VALUES = ("const", "enum")
NOTES = frozenset(
    [
        *("title", "description", "$schema", "examples", "default", "$comment"),
        *("deprecated", "readOnly", "writeOnly"),
    ]
)
"""Keywords that constrain nothing."""
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names to schemas."""
_NO_SCHEMAS = ("default", "examples", "x-guidance")
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


class InexactNumberError(ValueError):
    """A schema has a number that llguidance would change."""


def exact_schema(source: str) -> str:
    """Rewrite a schema so that llguidance follows it exactly."""
    if not _CHANGED.search(source):
        return source
    schema = json.loads(source)
    guidance = schema.get("x-guidance") if isinstance(schema, dict) else None
    lenient = isinstance(guidance, dict) and guidance.get("lenient") is True
    return json.dumps(_exact(schema, "#", lenient), ensure_ascii=False)


def exact_grammar(source: str) -> str:
    """Rewrite the schemas (`%json`) of a grammar as `exact_schema` does."""
    if not _CHANGED.search(source):
        return source
    written, read = list[str](), 0
    for start, end in schemas_in(source):
        written += [source[read:start], _exact_part(source, start, end)]
        read = end
    return "".join([*written, source[read:]])


def schemas_in(source: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the schemas (`%json`) of a Lark grammar."""
    place = 0
    while (match := _PARTS.search(source, place)) is not None:
        place = match.end()
        if match["json"]:
            try:
                _, place = json.JSONDecoder().raw_decode(source, match.end())
            except (ValueError, RecursionError):
                continue  # llguidance reports the error with its position
            yield match.end(), place


def lark_regex(regex: str) -> str:
    """Return a regular expression as a Lark terminal, with escaped slashes."""
    parts = re.findall(r"\\.|.", regex, re.DOTALL)
    return f"/{''.join([_IN_LARK.get(part, part) for part in parts])}/"


_IN_LARK = {"/": r"\x2F", r"\/": r"\x2F", "\\\n": r"\n"}
"""Parts of regular expressions that Lark writes differently."""


def _exact_part(source: str, start: int, end: int) -> str:
    try:
        return exact_schema(source[start:end])
    except InexactNumberError as error:
        line = source.count("\n", 0, start) + 1
        column = start - source.rfind("\n", 0, start)
        raise InexactNumberError(f"at line {line}, column {column}: {error}") from error


def _exact(schema: Any, place: str, lenient: bool) -> Any:
    if isinstance(schema, list):
        return [_exact(part, f"{place}/{index}", lenient) for index, part in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        where = f"{place}/{key}"
        if key in _NO_SCHEMAS:
            kept[key] = value
        elif key in NAMED_SCHEMAS and isinstance(value, Mapping):
            kept[key] = {name: _exact(one, f"{where}/{name}", lenient) for name, one in value.items()}
        elif key in VALUES:
            changed = _changed_number(value)
            if changed is None:
                kept[key] = value
            elif not lenient:
                raise InexactNumberError(f"{changed} (at {where}): inexact in float64, use at most 2**53")
        elif key in (*_LOWER, *_UPPER) and _is_whole(value):
            kept[key] = _inner_bound(value, key in _LOWER)
        elif key == "multipleOf" and _is_whole(value) and _as_kept(value) != value:
            if not lenient:
                raise InexactNumberError(f"{value} (at {where}): inexact in float64, use at most 2**53")
        else:
            kept[key] = _exact(value, where, lenient)
    return _with_end(kept)


def _with_end(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose time formats have a maximum length."""
    if schema.get("format") not in _TIMES:
        return schema
    max_length = schema.get("maxLength", _MAX_OF_TIME)
    return schema | {"maxLength": min(max_length, _MAX_OF_TIME)} if isinstance(max_length, int) else schema


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_kept(number: int) -> int:
    """Return the integer that llguidance uses in place of `number`."""
    try:
        return max(_MIN_INT, min(_MAX_INT, int(float(number))))
    except OverflowError:
        return _MAX_INT if number > 0 else _MIN_INT


def _inner_bound(bound: int, lower: bool) -> int:
    """Move a bound inwards to the next integer that llguidance represents."""
    kept = _as_kept(bound)
    if (kept >= bound) if lower else (kept <= bound):
        return kept
    return int(math.nextafter(float(kept), math.inf if lower else -math.inf))


def _changed_number(value: Any) -> int | None:
    """Return the first integer in a constant that llguidance would change."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        if (changed := _changed_number(part)) is not None:
            return changed
    return value if _is_whole(value) and _as_kept(value) != value else None
