"""Decode conversations into turns and tools for chat templates. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from specinfer.errors import InvalidInputError
from specinfer.text.chat.template import ChatEnd
from specinfer.v1 import generation_pb2

ROLES = ("system", "user", "assistant", "tool")
MAX_TOOLS = 128


def turns_of(messages: Sequence[generation_pb2.ChatMessage]) -> list[dict[str, Any]]:
    """Return the chat template's messages as dicts."""
    return [_turn(f"chat.messages[{index}]", message) for index, message in enumerate(messages)]


def tools_of(chat: generation_pb2.ChatMessages) -> list[dict[str, Any]]:
    """Return the chat template's tools, parsed from JSON."""
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidInputError("chat.tools", len(chat.tools), f"at most {MAX_TOOLS}", "tools")
    return [_object(f"chat.tools[{index}]", text) for index, text in enumerate(chat.tools)]


_OURS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
"""Variables of chat templates that callers cannot set."""


def variables_of(chat: generation_pb2.ChatMessages) -> dict[str, Any]:
    """Return the variables that the caller set for the chat template."""
    variables = _object("chat.variables", chat.variables) if chat.variables else {}
    for name in variables:
        if name in _OURS:
            raise InvalidInputError(
                f"chat.variables.{name}", variables[name], "the gateway sets this variable; use another name"
            )
    return variables


def end_of(chat: generation_pb2.ChatMessages) -> ChatEnd:
    """Return how the rendered conversation ends: field `chat.end`."""
    number = int(chat.end)
    if number not in tuple(ChatEnd):
        raise InvalidInputError("chat.end", number, f"must be one of {[int(end) for end in ChatEnd]}")
    last = chat.messages[-1]
    if number == ChatEnd.CONTINUED and (
        last.role != "assistant" or last.tool_calls or not last.content.strip()
    ):
        raise InvalidInputError("chat.end", number, "the last message must be text of role assistant")
    return ChatEnd(number)


def texts_of(chat: generation_pb2.ChatMessages) -> Iterator[str]:
    """Yield all texts that count towards the size of a conversation."""
    yield from chat.tools
    yield chat.variables
    for message in chat.messages:
        yield message.content
        yield message.reasoning
        yield message.tool_call_id
        yield from [call.id + call.name + call.arguments for call in message.tool_calls]


def _turn(field: str, message: generation_pb2.ChatMessage) -> dict[str, Any]:
    if message.role not in ROLES:
        raise InvalidInputError(f"{field}.role", message.role, f"must be one of {', '.join(ROLES)}")
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _object(f"{field}.tool_calls[{index}].arguments", call.arguments),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return turn


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(field, text, f"must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(field, text, "must be a JSON object")
    return value
