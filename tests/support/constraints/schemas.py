"""JSON schemas with short texts, for models with a vocabulary of 97 characters."""

import json
from typing import Any


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _array(items: Any, least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


_WORD = {"type": "string", "minLength": 1, "maxLength": 6}
_DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
_TREE = {
    "$defs": {"node": _object(v=_DIGIT, l={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]})}
    | {"leaf": _object(w=_WORD)},
    "$ref": "#/$defs/node",
}
_SCHEMAS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "null"},
    {"const": "yes"},
    {"const": {"a": [1, 2]}},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, 22, 333, "four"]},
    _DIGIT,
    {"type": "integer", "minimum": -50, "maximum": 1200},
    {"type": "integer", "minimum": 100, "exclusiveMaximum": 200, "multipleOf": 5},
    {"type": "number", "minimum": 0.25, "maximum": 9.75, "multipleOf": 0.25},
    _WORD,
    {"type": "string", "maxLength": 3},
    {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    _array(_DIGIT, 1, 4),
    _array({"type": "boolean"}, 0, 3),
    _array(_array(_DIGIT, 1, 2), 2, 2),
    {"type": "array", "prefixItems": [_DIGIT, _WORD, {"type": "boolean"}], "items": False, "minItems": 3},
    _object(name=_WORD),
    _object(name=_WORD, age={"type": "integer", "minimum": 0, "maximum": 130}),
    _object(a=_object(b=_object(c=_DIGIT))),
    _object(tags=_array({"enum": ["x", "yy", "zzz"]}, 1, 3), ok={"type": "boolean"}),
    _object(kind={"const": "point"}, x=_DIGIT, y=_DIGIT),
    {
        "type": "object",
        "properties": {"a": _DIGIT, "b": _DIGIT},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"anyOf": [_object(cat={"type": "boolean"}), _object(dog=_DIGIT)]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "null"}]},
    _TREE,
    {
        "allOf": [
            {"type": "object", "properties": {"id": _DIGIT}, "required": ["id"]},
            _object(id=_DIGIT, t=_WORD),
        ]
    },
]
_COMPACT = {"x-guidance": {"whitespace_flexible": False}}
"""Forbids white space, which the tiny model would repeat endlessly."""
SCHEMAS = [schema if index % 5 == 0 else _COMPACT | schema for index, schema in enumerate(_SCHEMAS)]
TEXTS = [json.dumps(schema) for schema in SCHEMAS]
