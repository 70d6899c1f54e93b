"""Messages of llguidance about refused constraints, with positions in the caller's source. Pure."""

import re

from specinfer.constraints.constraint import Constraint, ConstraintKind

_LARK = re.compile(r"(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<why>[^\n]*)")
_REGEX = re.compile(r"\n    (?P<mark> *)\^+\s*\nerror: (?P<why>[^\n]*)")


def explain(constraint: Constraint, message: str) -> str:
    """Return the message as one line."""
    if constraint.kind is ConstraintKind.REGEX and (found := _REGEX.search(message)):
        return f"at character {len(found['mark']) + 1}: {found['why']}"
    if constraint.kind is ConstraintKind.GRAMMAR and (found := _LARK.search(message)):
        return f"at line {found['line']}, column {found['column']}: {found['why']}"
    found = _LARK.match(message)
    return found["why"] if found else message.strip().partition("\n")[0]
