"""Fields that bodies share: texts, and values that change nothing."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
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
Unsupported = Annotated[None, only()]
NotTrue = Annotated[None, only(False)]


class Strict(BaseModel):
    """Unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
