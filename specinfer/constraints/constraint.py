"""What a request asks for. Pure data."""

import json
from dataclasses import dataclass
from enum import StrEnum

from specinfer.errors import InvalidInputError

MAX_BYTES = 65_536
"""Of a constraint's source."""


class ConstraintKind(StrEnum):
    """How a constraint is written; also the name of its field in messages."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    """Lark's notation, as llguidance reads it; GBNF is not."""
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Constraint:
    """Text that may be generated; whether it can be compiled is another question (`Checker`).

    Raises:
        InvalidInputError: if the source is empty or too large.
    """

    kind: ConstraintKind
    source: str
    """A schema as JSON, a regular expression, a grammar, or the texts of a choice as a JSON list."""

    def __post_init__(self) -> None:
        if not self.source:
            raise self.error("must not be empty")
        size = len(self.source.encode())
        if size > MAX_BYTES:
            raise InvalidInputError(self.field, size, f"bytes, at most {MAX_BYTES}")

    @classmethod
    def choice(cls, texts: list[str]) -> "Constraint":
        """One of these texts.

        Raises:
            InvalidInputError: if there is none, or one is empty.
        """
        for index, text in enumerate(texts):
            if not text:
                raise InvalidInputError(f"constraint.choice.texts[{index}]", text, "must not be empty")
        if not texts:
            raise InvalidInputError("constraint.choice.texts", texts, "must not be empty")
        return cls(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False))

    @property
    def field(self) -> str:
        """Its name in a request."""
        return f"constraint.{self.kind}"

    def error(self, why: str) -> InvalidInputError:
        """What is wrong with it, `why` with the position."""
        return InvalidInputError(self.field, self.source, why)
