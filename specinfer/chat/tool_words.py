"""Tools in plain words, for models whose chat template does not know them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INSTRUCTIONS = (
    "You may call these functions, each described by a JSON object:\n{functions}\n"
    'To call, answer with nothing but {{"name": "NAME", "arguments": {{...}}}}, one a line.'
)


def told_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the conversation with roles that every template knows.

    Functions are described in the system's turn, calls are the assistant's words, results are the user's.
    """
    turns = [_in_words(message) for message in messages]
    if not tools:
        return turns
    functions = "\n".join([json.dumps(tool.get("function", tool)) for tool in tools])
    told = _INSTRUCTIONS.format(functions=functions)
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{turns[0]['content']}\n\n{told}"}, *turns[1:]]
    return [{"role": "system", "content": told}, *turns]


def _in_words(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the function: {message['content']}"}
    if calls := message.get("tool_calls"):
        texts = [json.dumps(call["function"]) for call in calls]
        return {"role": message["role"], "content": "\n".join([*filter(None, [message["content"]]), *texts])}
    return message
