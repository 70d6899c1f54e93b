"""Forms that an answer may be asked to have: OpenAI's `response_format`, vLLM's `structured_outputs`.

Types only; whether a schema or a grammar can be followed says the gateway.
"""

from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.fields import Strict, Text


class JsonSchema(Strict):
    """A schema with a name."""

    name: Text
    content: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None
    """The answer follows the schema in any case."""


class ResponseFormat(Strict):
    """Which form the answer has."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            why = "{field}: needed with type json_schema, and only there"
            raise PydanticCustomError("mismatch", why, {"field": "response_format.json_schema"})
        return self


class StructuredOutputs(Strict):
    """Which form the text has: one of these."""

    json_schema: dict[str, Any] | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: list[Text] | None = None
    grammar: Text | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "StructuredOutputs":
        fields = (self.json_schema, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(value is not None for value in fields) != 1:
            why = "{field}: must have one of json, regex, choice, grammar and json_object"
            raise PydanticCustomError("not_one", why, {"field": "structured_outputs"})
        return self
