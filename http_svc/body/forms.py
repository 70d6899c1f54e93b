"""Constraints of the answer's text that a caller may require."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.fields import FIRST, Ignored, Schema, Strict, Text, at_most
from specinfer.text.constraints.constraint import MAX_BYTES

ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""JSON schema for type `json_object`."""
MAX_TEXTS = 2**14
"""Maximum texts of `structured_outputs.choice`."""


class JsonSchema(Strict):
    """Field `json_schema` of `response_format`."""

    name: Ignored = None
    content: Schema = Field(alias="schema")
    description: Ignored = None
    strict: bool | None = None
    """Without effect: the answer always follows the schema."""


class ResponseFormat(Strict):
    """Field `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    content: Schema | None = Field(default=None, alias="schema")
    """JSON schema, as in llama.cpp's and Together's API; also for type `json_object`."""

    @model_validator(mode="after")
    def _check(self) -> "ResponseFormat":
        given = self.json_schema is not None
        if self.type == "json_schema" and given == (self.content is not None):
            reason = (
                "{field}: needed with response_format.type = json_schema, or response_format.schema, not both"
            )
            raise PydanticCustomError("mismatch", reason, {"field": "response_format.json_schema"})
        if self.type != "json_schema" and given:
            context = {"field": "response_format.json_schema", "type": self.type}
            reason = "{field}: only with response_format.type = json_schema, not {type}"
            raise PydanticCustomError("mismatch", reason, context)
        if self.type == "text" and self.content is not None:
            reason = "{field}: only with response_format.type = json_object or json_schema, not text"
            raise PydanticCustomError("mismatch", reason, {"field": "response_format.schema"})
        return self

    @property
    def schema_of_text(self) -> dict[str, Any] | None:
        """JSON schema of the text; None if any text is allowed."""
        if self.json_schema is not None:
            return self.json_schema.content
        return ANY_OBJECT if self.type == "json_object" and self.content is None else self.content


class StructuredOutputs(Strict):
    """Field `structured_outputs`: exactly one constraint of the text."""

    json_schema: Schema | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Annotated[list[Text], FIRST, at_most(MAX_TEXTS)] | None = None
    grammar: Annotated[Text, Field(max_length=MAX_BYTES)] | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "StructuredOutputs":
        fields = (self.json_schema, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(value is not None for value in fields) != 1:
            reason = "{field}: must have one of json, regex, choice, grammar and json_object, not several"
            raise PydanticCustomError("not_one", reason, {"field": "structured_outputs"})
        return self
