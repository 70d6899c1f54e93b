"""Grammars of answers next to calls: a caller's form, any JSON object."""

import json
from collections.abc import Sequence

from http_svc.calls.heads import SPACE
from http_svc.calls.reader import MAX_CALLS
from specinfer.client.options import RequestOptions
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.schemas import lark_regex

_TEXT = r'"(\\(["\\\/bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1F])*"'
_NAME, _TYPE, _ARGUMENTS = '"name"', '"type"', '"(arguments|parameters)"'
_FIRST, _NEXT = r"\{", f"{SPACE},"


def form_rule(options: RequestOptions) -> str:
    """Return the Lark rule of the options' form; empty without one."""
    if (schema := options.get("json_schema")) is not None:
        source = schema if isinstance(schema, str) else json.dumps(schema)
        return f"%json {_one_value(Constraint(ConstraintKind.JSON_SCHEMA, source).source)}"
    if (regex := options.get("regex")) is not None:
        return lark_regex(Constraint(ConstraintKind.REGEX, regex).source)
    if (texts := options.get("choice")) is not None:
        Constraint.choice(list(texts))
        return " | ".join([json.dumps(text, ensure_ascii=False) for text in texts])
    return ""


def _one_value(source: str) -> str:
    """Return JSON on one line.

    Other text becomes a JSON string, which is refused, as it is no schema.
    """
    try:
        return json.dumps(json.loads(source))
    except (ValueError, RecursionError):
        return json.dumps(source)


def object_rules(names: Sequence[str], several: bool) -> list[str]:
    """Return Lark rules `json_calls` and `other_object`.

    The caller defines rules `args_0`, `args_1`, ... for the functions' arguments. Both rules share terminals, since
    the lexer would prefer a longer terminal and exclude the other rule.
    """
    calls = " | ".join([f"FUNCTION_{i} NEXT_ARGUMENTS args_{i}" for i in range(len(names))])
    functions = " | ".join([f"FUNCTION_{i}" for i in range(len(names))])
    more = f" (BETWEEN json_call){{0,{MAX_CALLS - 1}}}" if several else ""
    return [
        f"json_calls: json_call{more}",
        f"json_call: (FIRST_NAME | FIRST_TYPE TYPE NEXT_NAME) ({calls}) CLOSED",
        "other_object: EMPTY | (FIRST_NAME function | FIRST_TYPE TYPE) CLOSED | first (NEXT value)* CLOSED",
        "first: FIRST_OTHER value | named | typed",
        "named: FIRST_NAME (OTHER_TEXT | no_text | function NEXT_OTHER value)",
        "typed: FIRST_TYPE (OTHER_TYPE | no_text | TYPE NEXT_UNNAMED value)",
        f"function: {functions}",
        "value: %json {}",
        'no_text: %json {"type": ["object", "array", "number", "boolean", "null"]}',
        *[
            f"FUNCTION_{i}: {json.dumps(json.dumps(name, ensure_ascii=False))}"
            for i, name in enumerate(names)
        ],
        f"OTHER_TEXT: TEXT_IN_QUOTES & ~({functions})",
        'TYPE: "\\"function\\""',
        "OTHER_TYPE: TEXT_IN_QUOTES & ~TYPE",
        f"TEXT_IN_QUOTES: /{_TEXT}/",
        f"FIRST_NAME: {_key(_FIRST, _NAME)}",
        f"FIRST_TYPE: {_key(_FIRST, _TYPE)}",
        f"FIRST_OTHER: {_key(_FIRST, _TEXT)} & ~FIRST_NAME & ~FIRST_TYPE",
        f"NEXT_NAME: {_key(_NEXT, _NAME)}",
        f"NEXT_ARGUMENTS: {_key(_NEXT, _ARGUMENTS)}",
        f"NEXT: {_key(_NEXT, _TEXT)}",
        "NEXT_OTHER: NEXT & ~NEXT_ARGUMENTS",
        "NEXT_UNNAMED: NEXT & ~NEXT_NAME",
        f"EMPTY: /{_FIRST}{SPACE}\\}}/",
        f"CLOSED: /{SPACE}\\}}/",
        "BETWEEN: /[ \\n;,]{1,4}/",
    ]


def _key(before: str, key: str) -> str:
    return f"/{before}{SPACE}{key}{SPACE}:{SPACE}/"
