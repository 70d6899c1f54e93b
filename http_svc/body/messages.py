"""Messages of a conversation."""

from typing import Annotated, Any, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.fields import FIRST, Ignored, Strict, Text, Unsupported, at_most, known_only
from http_svc.body.tools import ToolCall

MAX_PARTS, MAX_CALLS = 1024, 128
"""Maximum parts of a message's content, and function calls of a message."""


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text
    cache_control: Ignored = None


class Message(Strict):
    """A message. Unknown fields of assistants' messages are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], FIRST, at_most(MAX_PARTS)] | None = None
    tool_calls: Annotated[list[ToolCall], FIRST, at_most(MAX_CALLS)] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    """Reasoning text of an earlier answer."""

    name: Ignored = None
    cache_control: Ignored = None
    refusal: Ignored = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, data: Any) -> Any:
        return known_only(cls, data) if isinstance(data, dict) and data.get("role") == "assistant" else data

    @model_validator(mode="after")
    def _check_content(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("misplaced", "tool_calls: only with role assistant")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise PydanticCustomError(
                "misplaced", "tool_call_id: required with role tool, not allowed with other roles"
            )
        if self.content is None and self.role != "assistant":  # an answer may have been empty
            raise PydanticCustomError(
                "no_content",
                "content: required with role {role}: a text or a list of parts",
                {"role": self.role},
            )
        return self
