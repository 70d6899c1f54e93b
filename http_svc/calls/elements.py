"""Constrain and type Qwen3-Coder's calls: one XML element per parameter."""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from specinfer.text.chat.forms import BY_NAME
from specinfer.text.constraints.references import Types, definitions_in, types_of, values_of

Kinds: TypeAlias = Mapping[str, Types]
"""JSON types by parameter of a function; an empty set: any type."""
_FORM = BY_NAME["qwen3_coder"]
PARAMETER, CLOSE, FUNCTION_END = _FORM.parameters[0], _FORM.parameters[2].strip(), "</function>"
LINE_END = r"[ \t\r]{0,20}\n[ \t\r\n]{0,20}"
"""White space between a value's closing mark and what follows."""
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_FOLLOWED = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "x-guidance"}
_NAMES = re.compile(r"[^<>\n\s\"\\]{1,200}")
_MAX_PARAMETERS = 64
"""Maximum parameters of a function: bits of llguidance's parametric rules."""


def read_value(text: str, kinds: Types) -> str:
    """Return a parameter's text as JSON of `kinds`, or a string."""
    if kinds == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    written = _PYTHON.get(text.strip(), text)
    try:
        (kind,) = types_of({"const": json.loads(written, parse_constant=_refuse)})
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
    return {name: types_of(part, schema) for name, part in properties.items()}


def are_elements(schema: Mapping[str, Any], strict: bool) -> bool:
    """Return whether XML elements can express a function's schema.

    A string in an element has no quotes, so its schema cannot be enforced; strict functions need an `enum` for each.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not schema.keys() <= _FOLLOWED:
        return False
    if schema.get("additionalProperties", True) not in (True, False, {}):
        return False
    if not isinstance(required, list) or len(properties) > _MAX_PARAMETERS:
        return False
    if not all(isinstance(name, str) and name in properties for name in required):
        return False
    if not all(map(_NAMES.fullmatch, properties)):
        return False
    parts = [(part, types_of(part, schema)) for part in properties.values()]
    if any("string" not in types and definitions_in(part, schema) is None for part, types in parts):
        return False
    return not strict or all(
        types and ("string" not in types or values_of(part, schema) is not None) for part, types in parts
    )


def element_rules(number: int, schema: Mapping[str, Any]) -> list[str]:
    """Return Lark rules of a function's parameters, in any order.

    `elements_NUMBER` is the start. The bits of a rule are the given parameters, required ones first.
    """
    properties, required = schema.get("properties", {}), dict.fromkeys(schema.get("required", []))
    end, more = json.dumps(FUNCTION_END), f"{json.dumps(PARAMETER)} parameter_{number}"
    begins = [f"{more}::0x0"] if properties else []
    rules = [f"elements_{number}: {' | '.join([*begins, *([] if required else [end])])}"]
    if not properties:
        return rules
    either = list[str]()
    for bit, name in enumerate([*required, *[name for name in properties if name not in required]]):
        value, then = _value(properties[name], schema), f"::set_bit({bit}) %if bit_clear({bit})"
        head = json.dumps(f"{name}{_FORM.parameters[1]}", ensure_ascii=False)
        if value is None:
            either.append(f"{head} text_{number}{then}")
        else:
            rules.append(f"value_{number}_{bit}: {value}")
            either.append(
                f"{head} value_{number}_{bit} {json.dumps(_FORM.parameters[2])} after_{number}{then}"
            )
    complete, left = f"is_ones([0:{len(required)}])", f"not(is_ones([0:{len(properties)}]))"
    complete = complete if required else "true"
    return [
        *rules,
        f"parameter_{number}::_: {' | '.join(either)}",
        f"after_{number}::_: {more}::_ %if {left} | {end} %if {complete}",
        f"text_{number}::_: element_open parameter_{number}::_ %if not({complete})"
        f" | element_more parameter_{number}::_ %if and({complete}, {left}) | element_done %if {complete}",
    ]


def _value(part: Any, schema: Mapping[str, Any]) -> str | None:
    """Return the Lark rule of a parameter's value; None: any text."""
    values = values_of(part, schema)
    if values is not None and not any(isinstance(value, str) and CLOSE in value for value in values):
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return " | ".join([json.dumps(text, ensure_ascii=False) for text in texts])
    types = types_of(part, schema)
    if not types or "string" in types:
        return None
    definitions = definitions_in(part, schema) or {}
    guidance = {"x-guidance": schema["x-guidance"]} if "x-guidance" in schema else {}
    return f"%json {json.dumps(definitions | guidance | part)}"


_CLOSE_IN_LARK = rf"{CLOSE}{LINE_END}".replace("/", r"\/")
_BEFORE = r"((?s:.*)\n)?"
ELEMENT_TEXTS = [
    rf"element_more[lazy]: /{_BEFORE}{_CLOSE_IN_LARK}{PARAMETER}/",
    rf"element_done[lazy]: /{_BEFORE}{_CLOSE_IN_LARK}<\/function>/",
    rf"element_open[lazy]: (/{_BEFORE}/ & ~/{_BEFORE}{_CLOSE_IN_LARK}<\/f(?s:.*)/) /{_CLOSE_IN_LARK}{PARAMETER}/",
]
"""Texts up to a parameter or the function's end.

`element_open`: up to a parameter, while required ones are missing.
"""
