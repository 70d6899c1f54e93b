"""Fields that bodies share: texts, and values that change nothing."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


def only(*neutral: Any) -> BeforeValidator:
    """Return a validator that drops values that change nothing, and refuses all others."""

    def check(value: Any) -> None:
        if value is not None and value not in neutral:
            raise PydanticCustomError("unsupported", "not supported")

    return BeforeValidator(check)


def _encodable(text: str) -> str:
    """Refuse halves of characters (surrogates), which JSON can write but no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_text", "must be Unicode text, without lone surrogates") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


def at_most(most: int) -> BeforeValidator:
    """Return a validator that refuses longer lists and mappings before it looks at what is in them."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise PydanticCustomError(
                "too_long", "at most {most} of them, not {found}", {"most": most, "found": len(value)}
            )
        return value

    return BeforeValidator(check)


FIRST: Any = Field(fail_fast=True)
"""Marks a list that ends to be checked at its first bad element."""
Unsupported = Annotated[None, only()]
NotTrue = Annotated[None, only(False)]


class Strict(BaseModel):
    """Unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, data: Any) -> Any:
        """Leave out all unknown fields but the first: one is error enough, and each costs."""
        if not isinstance(data, dict) or len(data) <= len(cls.model_fields):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in data if name not in known]
        return {name: value for name, value in data.items() if name in known or name == unknown[0]}
