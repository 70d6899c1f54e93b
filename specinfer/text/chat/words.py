"""Describe functions, calls and results in text, for templates without tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
_INSTRUCTIONS = (
    "You may call these functions, each described by a JSON object:\n{functions}\n"
    'To call, answer with nothing but {{"name": "NAME", "arguments": {{...}}}}, one a line.'
)


def with_common_roles(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Return a conversation with only roles system, user and assistant.

    The system message describes the functions. Calls become the assistant's text. Consecutive results and the next
    user message become one user message.
    """
    turns = list[Message]()
    after_result = False
    for message in messages:
        turn = _in_words(message)
        if after_result and turn["role"] == "user":
            between = "\n" if message["role"] == "tool" else "\n\n"
            turns[-1] = {**turn, "content": f"{turns[-1]['content']}{between}{turn['content']}"}
        else:
            turns.append(turn)
        after_result = message["role"] == "tool"
    return _with_functions(turns, tools)


def _with_functions(turns: list[Message], tools: Sequence[Message]) -> list[Message]:
    if not tools:
        return turns
    functions = "\n".join([_json(tool.get("function", tool)) for tool in tools])
    instructions = _INSTRUCTIONS.format(functions=functions)
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{instructions}"}, *turns[1:]]
    return [{"role": "system", "content": instructions}, *turns]


def _in_words(message: Message) -> Message:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the function: {message['content']}"}
    if calls := message.get("tool_calls"):
        texts = [_json(call["function"]) for call in calls]
        return {"role": message["role"], "content": "\n".join([*filter(None, [message["content"]]), *texts])}
    return message


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
