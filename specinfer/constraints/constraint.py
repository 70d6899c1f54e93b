"""Constraint of a request's text: its notation and source."""

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from specinfer.errors import InvalidInputError

MAX_BYTES = 65_536
"""Maximum bytes of a constraint's source."""
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
    """Constraint of the text. `Checker` checks that it compiles.

    Raises:
        InvalidInputError: if the source is empty or too large.
    """

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
        if size > MAX_BYTES:
            raise InvalidInputError(self.field, size, f"at most {MAX_BYTES}", "bytes")

    @classmethod
    def choice(cls, texts: list[str]) -> "Constraint":
        """Return the constraint to one of these texts.

        Raises:
            InvalidInputError: if `texts` or one of them is empty.
        """
        for index, text in enumerate(texts):
            if not text:
                raise InvalidInputError(f"constraint.choice.texts[{index}]", text, "must not be empty")
        if not texts:
            raise InvalidInputError("constraint.choice.texts", texts, "must not be empty")
        return cls(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False))

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
