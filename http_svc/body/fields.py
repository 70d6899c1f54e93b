"""Types of fields in several bodies: texts, numbers, schemas, ignored fields."""

import json
import logging
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

log = logging.getLogger(__name__)
Speculation = Literal["tree", "sequence", "off", "always"]
"""Names of `specinfer.request.fields.SPECULATIONS`."""
_NUMBERS = (int, float)
_SAME: dict[type, tuple[type, ...]] = {
    **{kind: (kind,) for kind in (bool, str, list, dict)},
    **dict.fromkeys(_NUMBERS, _NUMBERS),
}
"""By type, the types of equal values: `False` does not equal 0."""


@dataclass(frozen=True, eq=False)  # `Annotated` caches by equality, and 0 == False
class Neutral:
    """Pydantic marker: a field accepts null and values without effect (`values`)."""

    values: tuple[Any, ...]

    def check(self, value: Any) -> None:
        """Raise PydanticCustomError unless the value is None or one of `values`."""
        equal = [one for one in self.values if value == one and type(value) in _SAME[type(one)]]
        if value is not None and not equal:
            accepted = ", ".join(["null", *map(json.dumps, self.values)])
            raise PydanticCustomError("unsupported", "not supported, only {accepted}", {"accepted": accepted})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema of the field, with `check` before validation."""
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, source: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the field's JSON schema for `/openapi.json`."""
        return {"enum": [*self.values, None]}


def only(*neutral: Any) -> Neutral:
    """Return the marker of a field with only these values and null."""
    return Neutral(neutral)


def _encodable(text: str) -> str:
    """Refuse lone surrogates: JSON can express them, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_text", "must be Unicode text, without lone surrogates") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


def _without_point(value: Any) -> Any:
    """Return 12 for 12.0; JavaScript's and Lua's numbers have no integer type."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_without_point)]
"""A whole number, written as 12 or 12.0."""
Salt = Annotated[Text, Field(min_length=1, max_length=256)]
"""Text that separates caches."""
TokenId = Annotated[Whole, Field(ge=0, lt=2**32)]
MAX_TOKENS = 2**18
"""Maximum token ids of a prompt, longer than any context."""
_DEEPEST = 64
"""Maximum nesting levels of a JSON object passed to the gateway."""


def writable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the object; refuse deep nesting, infinite numbers, lone surrogates."""
    level: list[Any] = [schema]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            break
    else:
        raise PydanticCustomError("too_deep", "nested too deeply: at most {most} levels", {"most": _DEEPEST})
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise PydanticCustomError("not_json", "all numbers must be finite") from None
    _encodable(text)
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(writable)]
"""A JSON schema, or another object passed to the gateway."""


def at_most(limit: int) -> BeforeValidator:
    """Return a validator of a maximum length, run before elements' validators."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > limit:
            raise PydanticCustomError(
                "too_long", "has {found} entries, at most {most}", {"most": limit, "found": len(value)}
            )
        return value

    return BeforeValidator(check)


FIRST: Any = Field(fail_fast=True)
"""Option of a list field: checking stops at the first invalid element."""
Unsupported = Annotated[None, only()]
NotTrue = Annotated[None, only(False)]


@cache
def _log_ignored(name: str | None) -> None:
    log.info("ignored field %s, which changes no answer (logged once)", name)


def leave_out(value: Any, info: ValidationInfo) -> None:
    """Replace any value by None; log the field's first use."""
    _log_ignored(info.field_name)


Ignored = Annotated[None, BeforeValidator(leave_out), WithJsonSchema({"description": "Ignored."})]
"""A field without any effect (docs/http.md#fields-that-change-nothing)."""


class Strict(BaseModel):
    """A body whose unknown fields and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, data: Any) -> Any:
        """Drop null fields, and unknown fields after the first.

        This limits the number of errors.
        """
        if not isinstance(data, dict):
            return data
        data = {name: value for name, value in data.items() if value is not None}
        if len(data) <= len(cls.model_fields):
            return data
        known = known_only(cls, data)
        unknown = next((name for name in data if name not in known), None)
        return data if unknown is None else {**known, unknown: data[unknown]}


class Lenient(Strict):
    """A body with ignored unknown fields, which clients copy from other APIs."""

    model_config = ConfigDict(extra="ignore")


def known_only(model: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object that a model knows."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    return {name: value for name, value in data.items() if name in known}
