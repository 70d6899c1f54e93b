"""Messages of a conversation."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.fields import FIRST, Ignored, Strict, Text, Unsupported, at_most, known_only
from http_svc.body.tools import ToolCall
from specinfer.text.chat.turns import call_id_of

MAX_PARTS, MAX_CALLS = 1024, 128
"""Maximum parts of a message's content, and function calls of a message."""


class TextPart(Strict):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text
    cache_control: Ignored = None


def _text_only(value: Any) -> Any:
    """Leave out the objects with which other servers describe reasoning."""
    return value if isinstance(value, str) else None


class Message(Strict):
    """A message. Unknown fields of assistants' messages are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], FIRST, at_most(MAX_PARTS)] | None = None
    tool_calls: Annotated[list[ToolCall], FIRST, at_most(MAX_CALLS)] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    """Reasoning text of an earlier answer."""
    reasoning: Annotated[Text | None, BeforeValidator(_text_only)] = None
    """vLLM's and OpenRouter's name of `reasoning_content`."""

    name: Ignored = None
    cache_control: Ignored = None
    refusal: Ignored = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, data: Any) -> Any:
        return known_only(cls, data) if isinstance(data, dict) and data.get("role") == "assistant" else data

    @property
    def reasoning_text(self) -> str:
        """Reasoning text, by either name."""
        return self.reasoning_content or self.reasoning or ""

    @model_validator(mode="after")
    def _check_content(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("misplaced", "tool_calls: only with role assistant")
        if self.role != "tool" and self.tool_call_id is not None:
            raise PydanticCustomError("misplaced", "tool_call_id: only with role tool")
        if self.content is None and self.role != "assistant":  # an answer may have been empty
            raise PydanticCustomError(
                "no_content",
                "content: required with role {role}: a text or a list of parts",
                {"role": self.role},
            )
        return self


def with_ids(messages: Sequence[Message]) -> None:
    """Set missing ids of calls and results.

    A result without an id belongs to the earliest call without a result.
    """
    waiting, named = list[str](), {message.tool_call_id for message in messages}
    for index, message in enumerate(messages):
        for number, call in enumerate(message.tool_calls or ()):
            call.id = call.id or call_id_of(index, number)
            waiting.append(call.id)
        if message.role == "tool":
            message.tool_call_id = message.tool_call_id or next(
                (one for one in waiting if one not in named), None
            )
            if message.tool_call_id is None:
                field = f"messages[{index}].tool_call_id"
                reason = "{field}: required, as there is no call without a result before it"
                raise PydanticCustomError("missing_id", reason, {"field": field})
            if message.tool_call_id in waiting:
                waiting.remove(message.tool_call_id)
