"""Read the bodies of `/v1/messages` and its `count_tokens`, and convert them to chat bodies."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.bodies import ChatBody
from http_svc.body.choice import MAX_TOOLS
from http_svc.body.conversation import MAX_MESSAGES
from http_svc.body.fields import (
    FIRST,
    Ignored,
    Lenient,
    Salt,
    Schema,
    Speculation,
    Strict,
    Text,
    Unsupported,
    Whole,
    at_most,
    known_only,
    only,
)
from http_svc.body.forms import ResponseFormat
from http_svc.body.messages import MAX_PARTS, TextPart
from http_svc.body.neutral import RoutingFields

TEXT, THINKING, USE, RESULT = "text", "thinking", "tool_use", "tool_result"
_NEEDED = {TEXT: ("text",), THINKING: ("thinking",), USE: ("id", "name", "input"), RESULT: ("tool_use_id",)}
"""Fields that a block must have, by its type."""


Texts = Text | Annotated[list[TextPart], FIRST, at_most(MAX_PARTS)]


class Block(Strict):
    """A part of a message: text, reasoning, a call, or a call's result."""

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: Text | None = None
    thinking: Text | None = None
    id: Text | None = None
    name: Text | None = None
    input: Schema | None = None
    tool_use_id: Text | None = None
    content: Texts | None = None
    is_error: bool | None = None
    cache_control: Ignored = None
    caller: Ignored = None
    citations: Ignored = None
    data: Ignored = None
    signature: Ignored = None

    @model_validator(mode="after")
    def _check_kind(self) -> "Block":
        for name in _NEEDED.get(self.type, ()):
            if getattr(self, name) is None:
                raise PydanticCustomError("missing", f"{name}: needed with type {self.type}")
        return self


class MessageTurn(Strict):
    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Block], FIRST, at_most(MAX_PARTS)]


class MessageTool(Lenient):
    """A function, or one of Anthropic's own tools, which have other types."""

    type: Text = "custom"
    name: Text
    description: Text | None = None
    input_schema: Schema | None = None
    strict: bool | None = None


class MessageToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Field `thinking`; other types than the first two leave it to the template."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Ignored = None
    display: Ignored = None


class OutputConfig(Strict):
    effort: Text | None = None
    format: ResponseFormat | None = None


_KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


class CountBody(RoutingFields):
    """`POST /v1/messages/count_tokens`."""

    model: Text
    messages: Annotated[list[MessageTurn], Field(min_length=1), FIRST, at_most(MAX_MESSAGES)]
    system: Texts | None = None
    tools: Annotated[list[MessageTool], FIRST, at_most(MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Schema | None = None
    """vLLM's field: further variables of the chat template."""
    context_management: Annotated[None, only({}, {"edits": []}, _KEEP_ALL)] = None
    diagnostics: Ignored = None
    speed: Ignored = None
    user_profile_id: Ignored = None
    workspace_id: Ignored = None
    mcp_servers: Annotated[None, only([])] = None


class MessagesBody(CountBody):
    """`POST /v1/messages`."""

    max_tokens: Whole = Field(ge=1, lt=2**31)
    stop_sequences: Annotated[list[Text], FIRST] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    speculation: Speculation | None = None
    cache_salt: Salt | None = None
    metadata: Ignored = None
    inference_geo: Ignored = None
    container: Unsupported = None


RENAMED = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.schema": "output_config.format.schema",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Field names of this body by those of a chat body, where they differ."""
_SAME = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k", "speculation", "cache_salt")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: CountBody) -> ChatBody:
    """Convert a checked body to a chat body."""
    choice, output, thinking = body.tool_choice, body.output_config, body.thinking
    fields: dict[str, Any] = {
        "messages": messages_of(body),
        "tools": [_tool(tool) for tool in body.tools or ()],
        "tool_choice": choice and _CHOICES.get(choice.type, {"type": "function", "name": choice.name}),
        "parallel_tool_calls": choice and choice.disable_parallel_tool_use is not True,
        "stop": getattr(body, "stop_sequences", None),
        "response_format": output and output.format and output.format.model_dump(by_alias=True),
        "reasoning_effort": output and output.effort,
        "enable_thinking": {"enabled": True, "disabled": False}.get(thinking.type) if thinking else None,
        "chat_template_kwargs": body.chat_template_kwargs,
        **{name: getattr(body, name, None) for name in _SAME},
    }
    if body.messages[-1].role == "assistant":  # the answer continues it
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return ChatBody.model_validate(known_only(ChatBody, fields))


def messages_of(body: CountBody) -> list[dict[str, Any]]:
    """Return a body's messages: a result of a call is a message of role `tool`."""
    turns: list[dict[str, Any]] = []
    if body.system:
        turns.append({"role": "system", "content": _text(body.system)})
    for turn in body.messages:
        blocks = turn.content
        if isinstance(blocks, str):
            turns.append({"role": turn.role, "content": blocks})
        elif turn.role == "assistant":
            turns.append(_assistants(blocks))
        else:
            turns += [_result(block) for block in blocks if block.type == RESULT]
            if texts := [block.text for block in blocks if block.type == TEXT]:
                turns.append({"role": turn.role, "content": "\n".join(filter(None, texts))})
    return turns


def _assistants(blocks: list[Block]) -> dict[str, Any]:
    """Return the chat body's message of an assistant's blocks."""
    texts, thoughts = (
        [getattr(one, kind) for one in blocks if one.type == kind] for kind in (TEXT, THINKING)
    )
    calls = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.input}}
        for one in blocks
        if one.type == USE
    ]
    return {
        "role": "assistant",
        "content": "\n".join(texts) if texts else None,
        "reasoning_content": "\n".join(thoughts) or None,
        "tool_calls": calls or None,
    }


def _result(block: Block) -> dict[str, Any]:
    text = _text(block.content or "")
    failed = "Error: " if block.is_error else ""
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": failed + text}


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "\n".join([part.text for part in content])


def _tool(tool: MessageTool) -> dict[str, Any]:
    if tool.type != "custom":
        return {"type": tool.type}
    function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}
