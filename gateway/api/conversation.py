"""Conversations from outside: turns and tools as chat templates take them. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from specinfer.chat.template import ChatEnd
from specinfer.errors import InvalidInputError
from specinfer.v1 import generation_pb2

ROLES = ("system", "user", "assistant", "tool")
MAX_TOOLS = 128


def turns_of(messages: Sequence[generation_pb2.ChatMessage]) -> list[dict[str, Any]]:
    """Return the turns.

    Raises:
        InvalidInputError: naming a role that there is not, or a call whose arguments are no JSON object.
    """
    return [_turn(f"chat.messages[{index}]", message) for index, message in enumerate(messages)]


def tools_of(chat: generation_pb2.ChatMessages) -> list[dict[str, Any]]:
    """Return the tools.

    Raises:
        InvalidInputError: naming one that is no JSON object, or how many there are.
    """
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidInputError("chat.tools", len(chat.tools), f"at most {MAX_TOOLS}")
    return [_object(f"chat.tools[{index}]", text) for index, text in enumerate(chat.tools)]


_OURS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
"""Variables of chat templates that are not a caller's."""


def variables_of(chat: generation_pb2.ChatMessages) -> dict[str, Any]:
    """Return the caller's variables of the chat template.

    Raises:
        InvalidInputError: if they are no JSON object, or one of them is ours.
    """
    variables = _object("chat.variables", chat.variables) if chat.variables else {}
    for name in variables:
        if name in _OURS:
            raise InvalidInputError(f"chat.variables.{name}", variables[name], "is set by the conversation")
    return variables


def end_of(chat: generation_pb2.ChatMessages) -> ChatEnd:
    """Return how a conversation ends.

    Raises:
        InvalidInputError: if the end is unknown, or the message to continue is not an assistant's text.
    """
    number = int(chat.end)
    if number not in tuple(ChatEnd):
        raise InvalidInputError("chat.end", number, "unknown")
    last = chat.messages[-1]
    if number == ChatEnd.CONTINUED and (
        last.role != "assistant" or last.tool_calls or not last.content.strip()
    ):
        raise InvalidInputError("chat.end", last.role, "the last message must be the assistant's, in words")
    return ChatEnd(number)


def texts_of(chat: generation_pb2.ChatMessages) -> Iterator[str]:
    """Yield all texts that count towards the size of a conversation."""
    yield from chat.tools
    yield chat.variables
    for message in chat.messages:
        yield message.content
        yield message.reasoning
        yield from [call.name + call.arguments for call in message.tool_calls]


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
        raise InvalidInputError(field, text, f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(field, text, "must be a JSON object")
    return value
