"""Constraint of a request's text: its notation and source."""

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from specinfer.errors import InvalidInputError

MAX_BYTES, MAX_GRAMMAR_BYTES = 65_536, 2**22
"""Maximum bytes of a source; grammars may have many functions."""
_START, _START_IN_REASONING = (re.compile(rf"^{rule}\s*:", re.M) for rule in ("start", "start_in_reasoning"))


class ConstraintKind(StrEnum):
    """Notation of a constraint; also the name of its protobuf field."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    """Lark grammar in llguidance's dialect; GBNF is not supported."""
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraint of the text. `Checker` checks that it compiles."""

    kind: ConstraintKind
    source: str
    """A JSON schema, regular expression, grammar, or JSON list of choices."""

    def __post_init__(self) -> None:
        if not self.source:
            raise self.error("must not be empty")
        try:
            size = len(self.source.encode())
        except UnicodeEncodeError as error:
            raise self.error("has half of a surrogate pair, which UTF-8 cannot encode") from error
        limit = MAX_GRAMMAR_BYTES if self.kind is ConstraintKind.GRAMMAR else MAX_BYTES
        if size > limit:
            raise InvalidInputError(self.field, size, f"at most {limit}", "bytes")

    @classmethod
    def choice(cls, texts: list[str]) -> "Constraint":
        """Return the constraint to one of these texts."""
        for index, text in enumerate(texts):
            if not text:
                raise InvalidInputError(f"constraint.choice.texts[{index}]", text, "must not be empty")
        if not texts:
            raise InvalidInputError("constraint.choice.texts", texts, "must not be empty")
        return cls(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False))

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Constraint | None":
        """Return the constraint of a request's fields, by kind; None without one."""
        given = [(kind, fields[kind]) for kind in ConstraintKind if fields.get(kind) is not None]
        if not given:
            return None
        kind, source = given[0]
        if kind is ConstraintKind.CHOICE:
            return cls.choice(list(source))
        return cls(kind, source if isinstance(source, str) else json.dumps(source))

    @property
    def has_two_starts(self) -> bool:
        """True for a grammar with another start for answers within reasoning."""
        return self.kind is ConstraintKind.GRAMMAR and bool(_START_IN_REASONING.search(self.source))

    def in_reasoning(self) -> "Constraint":
        """Return a grammar with the rule `start_in_reasoning` as its start."""
        return replace(
            self, source=_START_IN_REASONING.sub("start:", _START.sub("start_outside:", self.source))
        )

    @property
    def field(self) -> str:
        return f"constraint.{self.kind}"

    def error(self, reason: str) -> InvalidInputError:
        """Return the error of an invalid source, with the reason."""
        return InvalidInputError(self.field, self.source, reason)


def forget_oldest(known: OrderedDict[Constraint, Any], most: int, most_bytes: int) -> None:
    """Remove the oldest constraints above the limits, except the newest."""
    size = sum(len(constraint.source) for constraint in known)
    while len(known) > 1 and (len(known) > most or size > most_bytes):
        size -= len(known.popitem(last=False)[0].source)
