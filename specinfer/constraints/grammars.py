"""Constraints in the notation of llguidance."""

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher

from specinfer.constraints.constraint import Constraint, ConstraintKind

_GAP = r"[\x20\x0A\x0D\x09]{1,20}"
"""White space between the parts of JSON; without a bound a small model may write nothing else."""


def grammar_of(constraint: Constraint) -> str:
    """Return the grammar of a constraint; nothing is checked but that JSON is JSON.

    Raises:
        InvalidInputError: naming the position, if a schema or choice is not JSON.
    """
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            own = _guidance(_parse(constraint))
            if "whitespace_flexible" in own:
                return LLMatcher.grammar_from_json_schema(constraint.source)
            return LLMatcher.grammar_from_json_schema(
                constraint.source, defaults={"whitespace_pattern": _GAP}
            )
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.source)
        case ConstraintKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(constraint.source)
        case ConstraintKind.CHOICE:
            texts = " | ".join([json.dumps(text) for text in _parse(constraint)])
            return LLMatcher.grammar_from_lark(f"start: {texts}")


def _guidance(schema: Any) -> Mapping[str, Any]:
    """Return a schema's own settings for llguidance, which a pattern of ours would overrule."""
    own = schema.get("x-guidance") if isinstance(schema, dict) else None
    return own if isinstance(own, dict) else {}


def _parse(constraint: Constraint) -> Any:
    try:
        parsed = json.loads(constraint.source)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise constraint.error(f"no JSON at {where}: {error.msg}") from error
    except RecursionError as error:
        raise constraint.error("too deeply nested") from error
    return parsed
