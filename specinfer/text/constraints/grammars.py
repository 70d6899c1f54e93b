"""Convert constraints to llguidance's grammars."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from llguidance import LLMatcher

from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.matcher import first_line
from specinfer.text.constraints.objects import ObjectRules, UnreadableError, has_traps
from specinfer.text.constraints.schemas import InexactNumberError, exact_grammar, exact_schema, schemas_in

_GAP = r"[\x20\x0A\x0D\x09]{1,20}"
"""White space between JSON tokens, at most 20 characters."""


def grammars_of(constraint: Constraint) -> Iterator[str]:
    """Yield the grammars of a constraint, the best one first.

    If none is valid, the error of the last one is the constraint's.
    """
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            yield from _of_schema(constraint, _parse(constraint))
        case ConstraintKind.REGEX:
            yield LLMatcher.grammar_from_regex(constraint.source)
        case ConstraintKind.GRAMMAR:
            source = _exact(constraint, exact_grammar)
            if (shared := _with_shared_rules(source)) != source:
                yield LLMatcher.grammar_from_lark(shared)
            yield LLMatcher.grammar_from_lark(source)
        case ConstraintKind.CHOICE:
            texts = " | ".join([json.dumps(text) for text in _parse(constraint)])
            yield LLMatcher.grammar_from_lark(f"start: {texts}")


def check_json(constraint: Constraint) -> None:
    """Check the JSON syntax of a schema or choice."""
    if constraint.kind in (ConstraintKind.JSON_SCHEMA, ConstraintKind.CHOICE):
        _parse(constraint)


def _of_schema(constraint: Constraint, schema: Any) -> Iterator[str]:
    source = "{}" if schema is True else _exact(constraint, exact_schema)
    fixed = "whitespace_flexible" in _guidance(schema)
    if has_traps(schema):
        rules = ObjectRules("json")
        with suppress(UnreadableError):
            start = rules.start(
                json.loads(source), ({} if fixed else {"whitespace_pattern": _GAP}) | {**_guidance(schema)}
            )
            yield LLMatcher.grammar_from_lark("\n".join([f"start: {start}", *rules.lines]))
    try:
        if fixed:
            yield LLMatcher.grammar_from_json_schema(source)
        else:
            yield LLMatcher.grammar_from_json_schema(source, defaults={"whitespace_pattern": _GAP})
    except ValueError as error:
        raise constraint.error(first_line(str(error))) from error


def _with_shared_rules(source: str) -> str:
    """Return a Lark grammar whose equal schemas share rules of `ObjectRules`."""
    places = list(schemas_in(source))
    schemas = [json.loads(source[start:end]) for start, end in places]
    if len(schemas) < 2 and not has_traps(schemas):
        return source
    prefix = "json"
    while prefix in source.replace("%json", ""):
        prefix += "_"
    rules, written, read = ObjectRules(prefix), list[str](), 0
    for (start, end), schema in zip(places, schemas, strict=True):
        with suppress(UnreadableError):
            name = rules.start(schema, _guidance(schema))
            written += [source[read:start].rpartition("%json")[0], name]
            read = end
    return "\n".join(["".join([*written, source[read:]]), *rules.lines])


def _exact(constraint: Constraint, rewrite: Callable[[str], str]) -> str:
    try:
        return rewrite(constraint.source)
    except InexactNumberError as error:
        raise constraint.error(str(error)) from error


_DEEPEST = 100
"""Maximum nested lists and objects: deeper schemas overflow llguidance's stack."""
_SHOWN = 40
"""Maximum characters of a number in an error."""


def _guidance(schema: Any) -> Mapping[str, Any]:
    """Return a schema's own llguidance settings, which have precedence."""
    guidance = schema.get("x-guidance") if isinstance(schema, dict) else None
    return guidance if isinstance(guidance, dict) else {}


def _parse(constraint: Constraint) -> Any:
    """Parse the JSON of a schema or choice."""

    def refuse(what: str) -> Any:
        raise constraint.error(f"has the number {what[:_SHOWN]}: numbers must be finite")

    def number(digits: str) -> float:
        return value if math.isfinite(value := float(digits)) else refuse(digits)

    try:
        parsed = json.loads(constraint.source, parse_constant=refuse, parse_float=number)
        if (depth := _depth(parsed)) > _DEEPEST:
            raise constraint.error(f"is nested {depth} levels deep: at most {_DEEPEST} are allowed")
        json.dumps(parsed, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise constraint.error(f"invalid JSON at {where}: {error.msg}") from error
    except UnicodeEncodeError as error:
        raise constraint.error("has half of a surrogate pair, which UTF-8 cannot encode") from error
    except RecursionError as error:
        raise constraint.error(f"is nested too deeply: at most {_DEEPEST} levels are allowed") from error
    except ValueError as error:
        limit = sys.get_int_max_str_digits()
        raise constraint.error(f"has an integer of more than {limit} digits") from error
    if constraint.kind is ConstraintKind.JSON_SCHEMA and not isinstance(parsed, dict | bool):
        shown = json.dumps(parsed)[:_SHOWN]
        raise constraint.error(f"is the JSON value {shown}: must be an object, true or false")
    return parsed


def _depth(parsed: Any) -> int:
    level, depth = [parsed], 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        level = [below for part in level for below in (part.values() if isinstance(part, dict) else part)]
    return depth
