"""Read the body of `POST /v1/responses`, and convert it to a chat body."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.bodies import ChatBody, Limit
from http_svc.body.choice import MAX_TOOLS, ToolChoice, dumped_choice
from http_svc.body.conversation import MAX_MESSAGES
from http_svc.body.fields import (
    FIRST,
    Ignored,
    Lenient,
    NotTrue,
    Salt,
    Schema,
    Speculation,
    Strict,
    Text,
    Unsupported,
    at_most,
    known_only,
    only,
)
from http_svc.body.messages import MAX_PARTS
from http_svc.body.neutral import RoutingFields
from http_svc.body.tools import Name, usable_only

MESSAGE, CALL, RESULT, REASONING = "message", "function_call", "function_call_output", "reasoning"


class Part(Lenient):
    """A text part of a message, or of a function's output."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: Text


Parts = Text | Annotated[list[Part], FIRST, at_most(MAX_PARTS)]


class Item(Lenient):
    """An item of `input`. Unknown fields are ignored."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Parts | None = None
    call_id: Text | None = None
    name: Annotated[Text, Field(min_length=1)] | None = None
    arguments: Any = None
    output: Parts | None = None
    summary: Parts | None = None
    """Reasoning without `content`."""

    @model_validator(mode="after")
    def _check_kind(self) -> "Item":
        needed = {
            MESSAGE: ("role", "content"),
            CALL: ("name",),
            RESULT: ("output",),
            REASONING: (),
        }
        for name in needed[self.type]:
            if getattr(self, name) is None:
                raise PydanticCustomError("missing", f"{name}: needed with type {self.type}")
        return self


class Reasoning(Lenient):
    """Field `reasoning`: the requested effort."""

    effort: Text | None = None


class FlatFunction(Strict):
    """An entry of `tools`: a function without a nested object."""

    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    content: Schema | None = Field(default=None, alias="schema")
    name: Ignored = None
    description: Ignored = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.content is not None):
            reason = "{field}: needed with type json_schema, refused with other types"
            raise PydanticCustomError("mismatch", reason, {"field": "text.format.schema"})
        return self


class TextOptions(Strict):
    format: TextFormat | None = None
    verbosity: Ignored = None


class StreamEvents(Strict):
    include_obfuscation: Ignored = None


class ResponsesBody(RoutingFields):
    """`POST /v1/responses`."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unusable_tools(cls, data: Any) -> Any:
        return usable_only(data)

    model: Text
    input: Text | Annotated[list[Item], Field(min_length=1), FIRST, at_most(MAX_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: Limit = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = None
    stream: bool | None = None
    stream_options: StreamEvents | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FlatFunction], FIRST, at_most(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    speculation: Speculation | None = None

    metadata: Schema | None = None
    """Any JSON object, repeated in the answer."""
    cache_salt: Salt | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: Schema | None = None
    """vLLM's field: additional variables of the chat template."""
    enable_thinking: bool | None = None
    client_metadata: Ignored = None
    include: Ignored = None
    truncation: Annotated[None, only("disabled", "auto")] = None
    background: NotTrue = None
    top_logprobs: Annotated[None, only(0)] = None
    previous_response_id: Unsupported = None
    conversation: Unsupported = None
    prompt: Unsupported = None


def conversation_of(body: ResponsesBody) -> ChatBody:
    """Convert a checked body to a chat body."""
    form = body.text.format if body.text else None
    asked_form = form and form.model_dump(by_alias=True, exclude_none=True, exclude={"strict"})
    fields = {
        "messages": messages_of(body),
        "max_completion_tokens": body.max_output_tokens,
        "tools": [_nested(tool) for tool in body.tools or ()],
        "tool_choice": body.tool_choice and dumped_choice(body.tool_choice),
        "response_format": asked_form,
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        **{name: getattr(body, name) for name in _SAME},
    }
    return ChatBody.model_validate(known_only(ChatBody, fields))


_SAME = (
    "cache_salt",
    "chat_template_kwargs",
    "enable_thinking",
    "model",
    "temperature",
    "top_p",
    "stream",
    "parallel_tool_calls",
    "speculation",
)
"""Fields with the same name and meaning in a chat body."""


RENAMED = {
    "messages": "input",
    "response_format": "text.format",
    "response_format.schema": "text.format.schema",
    "max_completion_tokens": "max_output_tokens",
}
"""Field names of this body by those of a chat body, where they differ."""


def messages_of(body: ResponsesBody) -> list[dict[str, Any]]:
    """Return a body's messages; calls are added to the assistant's last message."""
    turns: list[dict[str, Any]] = []
    if body.instructions:
        turns.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*turns, {"role": "user", "content": body.input}]
    for item in body.input:
        if item.type == REASONING:
            if reasoning := _text(item.content or item.summary):
                turn = _assistants(turns)
                turn["reasoning_content"] = "\n".join(
                    filter(None, [turn.get("reasoning_content"), reasoning])
                )
        elif item.type == MESSAGE and item.role == "assistant" and _is_begun(turns):
            turns[-1]["content"] = _text(item.content)
        elif item.type == MESSAGE:
            turns.append({"role": item.role, "content": _text(item.content)})
        elif item.type == RESULT:
            turns.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
        elif item.type == CALL:
            function = {"name": item.name, "arguments": item.arguments}
            _assistants(turns).setdefault("tool_calls", []).append(
                {"id": item.call_id, "type": "function", "function": function}
            )
    return turns


def _assistants(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's last message, or a new one after another role's."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": None})
    return turns[-1]


def _is_begun(turns: list[dict[str, Any]]) -> bool:
    """Return whether the last message has only an assistant's reasoning yet."""
    last = turns[-1] if turns else {}
    return last.get("role") == "assistant" and last["content"] is None and "tool_calls" not in last


def _text(content: str | list[Part] | None) -> str:
    return content if isinstance(content, str) else "\n".join([part.text for part in content or ()])


def _nested(tool: FlatFunction) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"})}
