"""Parse and constrain Qwen3-Coder's calls: one XML element per parameter."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from specinfer.chat.forms import BY_NAME

Kinds: TypeAlias = Mapping[str, frozenset[str]]
"""JSON types by parameter of a function; an empty set: any type."""
_FORM = BY_NAME["qwen3_coder"]
_CLOSE = _FORM.parameters[2].strip()
_PARAMETER = re.compile(
    rf"\s*{_FORM.parameters[0]}(?P<name>[^<>\n]{{1,200}})>\n?(?P<value>.*?)\n?{_CLOSE}\s*", re.DOTALL
)
ELEMENT_END = re.compile(r"\s*</function>")
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_FOLLOWED = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_OF_PEOPLE = {"title", "description", "$schema", "examples", "default", "$comment"}
_NAMES = re.compile(r"[^<>\n\s\"\\]{1,200}")
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null", float: "number"}


def next_parameter(text: str) -> re.Match[str] | None:
    """Match the parameter at the text's start; None if incomplete."""
    return _PARAMETER.match(text) if _CLOSE in text else None


def read_value(text: str, kinds: frozenset[str]) -> str:
    """Return a parameter's text as JSON of `kinds`, or a string."""
    if kinds == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    written = _PYTHON.get(text.strip(), text)
    try:
        kind = _kind_of(json.loads(written, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    fits = not kinds or kind in kinds or (kind == "integer" and "number" in kinds)
    return written.strip() if fits or "string" not in kinds else json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> None:
    raise ValueError(name)  # NaN and infinities are not JSON


def kinds_of(schema: Mapping[str, Any] | None) -> Kinds:
    """Return the JSON types of the parameters of a function's schema."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: _kinds(_resolved(part, schema or {})) for name, part in properties.items()}


def _kinds(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    if isinstance(values := schema.get("enum"), list):
        return frozenset(map(_kind_of, values))
    if "const" in schema:
        return frozenset([_kind_of(schema["const"])])
    for key in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(key), list):
            kinds_of_parts = [_kinds(part) for part in parts]
            return frozenset().union(*kinds_of_parts) if all(kinds_of_parts) else frozenset()
    kinds = schema.get("type")
    return frozenset([kinds] if isinstance(kinds, str) else kinds or ())


def _kind_of(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "integer"
    return _TYPES[type(value)]


def _resolved(part: Any, schema: Mapping[str, Any]) -> Any:
    """Return a parameter's schema, or the definition that its `$ref` names."""
    reference = part.get("$ref") if isinstance(part, Mapping) else None
    if not isinstance(reference, str):
        return part
    _, _, path = reference.partition("#/")
    table, _, name = path.partition("/")
    definitions = schema.get(table)
    return definitions.get(name, part) if isinstance(definitions, Mapping) else part


def are_elements(schema: Mapping[str, Any], strict: bool) -> bool:
    """Return whether XML elements can express a function's schema.

    A string in an element has no quotes, so its schema cannot be enforced; strict functions need an `enum` for each.
    """
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not schema.keys() <= _FOLLOWED | _OF_PEOPLE | {"x-guidance"}:
        return False
    if not set(schema.get("required") or ()) <= properties.keys() or not all(
        map(_NAMES.fullmatch, properties)
    ):
        return False
    kinds = kinds_of(schema)
    return not strict or all(
        types and ("string" not in types or "enum" in _resolved(properties[name], schema))
        for name, types in kinds.items()
    )


def element_rules(number: int, schema: Mapping[str, Any]) -> list[str]:
    """Return Lark rules of a function's parameters; `elements_NUMBER` is the start."""
    begin, middle, after = _FORM.parameters
    required, order, rules = schema.get("required") or (), list[str](), list[str]()
    for place, (name, part) in enumerate(schema.get("properties", {}).items()):
        rule, resolved = f"element_{number}_{place}", _resolved(part, schema)
        values = resolved.get("enum") if isinstance(resolved, Mapping) else None
        head = json.dumps(f"{begin}{name}{middle}", ensure_ascii=False)
        if values and all(isinstance(value, str) and _CLOSE not in value for value in values):
            texts = " | ".join([json.dumps(value + after, ensure_ascii=False) for value in values])
            rules.append(f"{rule}: {head} ({texts})")
        elif (kinds := _kinds(resolved)) and "string" not in kinds:
            definitions = {
                key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema
            }
            rules.append(f"{rule}: {head} %json {json.dumps({**definitions, **part})} {json.dumps(after)}")
        else:
            rules.append(f'{rule}: {head} element_text "\\n"')
        order.append(rule if name in required else f"{rule}?")
    return [*rules, f"elements_{number}: {' '.join(order)}"]


ELEMENT_TEXT = rf"element_text[lazy]: /(?s:.*){_CLOSE.replace('/', chr(92) + '/')}/"
