"""Bodies of real clients with other fields than those of OpenAI's client: all are answered."""

from typing import Any

from tests.support.network.http_service import CHAT, http_service
from tests.support.system import running_system

SAY: dict[str, Any] = {"role": "user", "content": "hi"}
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "temperature": 0, "messages": [SAY]}
CACHED = {"cache_control": {"type": "ephemeral"}}


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    """Return fields of a conversation with an earlier call of a function."""
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}} | more
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "messages": [SAY, answer, {"role": "tool", "tool_call_id": "c1", "name": "now", "content": "12:00"}]
    }


def tool(field: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a conversation with a function that has this parameter."""
    parameters = {"type": "object", "properties": {"x": field}}
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}


BODIES: dict[str, dict[str, Any]] = {
    "AutoGen: name of a message": {"messages": [SAY | {"name": "Init"}]},
    "Copilot: a call without arguments": called(""),
    "LangChain: blank arguments": called(" "),
    "a proxy: null arguments": called(None) | {"tool_choice": None},
    "a call that max_tokens cut off": called('{"city": "Ro'),
    "LiteLLM: fields of a provider in a call": called("{}", index=0, provider_specific_fields={"a": 1}),
    "LibreChat, n8n: user": {"user": "u1"},
    "Open WebUI: user as object": {"user": {"id": "1", "email": "a@b"}},
    "OpenAI: fields of accounts": {
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "verbosity": "low",
        "reasoning_effort": "minimal",
    },
    "LiteLLM, Aider: cache_control of a part": {
        "messages": [SAY | {"content": [{"type": "text", "text": "hi", **CACHED}]} | CACHED]
    },
    "Cline: an earlier answer with reasoning": {
        "messages": [
            SAY,
            {
                "role": "assistant",
                "content": "a",
                "reasoning_content": "b",
                "refusal": None,
                "annotations": [],
            },
            SAY,
        ]
    },
    "an earlier answer that was empty": {
        "messages": [SAY, {"role": "assistant", "content": None, "tool_calls": []}, SAY]
    },
    "Together, llama.cpp: json_object with schema": {
        "response_format": {"type": "json_object", "schema": {"type": "object"}}
    },
    "llama.cpp: json_schema with schema beside it": {
        "response_format": {"type": "json_schema", "schema": {"type": "object"}}
    },
    "a schema without a name": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    },
    "Open WebUI, LM Studio: max_tokens -1": {"max_tokens": -1, "stop_token_ids": list(range(3, 97))},
    "JavaScript, Lua: max_tokens 12.0": {"max_tokens": 12.0, "n": 1.0, "top_k": 0.0},
    "both limits": {"max_completion_tokens": 4},
    "vLLM's bench: ignore_eos": {"ignore_eos": True, "min_p": 0, "repetition_penalty": 1.0},
}


async def test_bodies_of_real_clients_are_answered(redis_url: str) -> None:
    async with running_system(redis_url) as system, http_service(system.address) as http:
        wrong = {}
        for name, fields in BODIES.items():
            reply = await http.plain.post(CHAT, json=ASKED | fields)
            if reply.status_code != 200:
                wrong[name] = reply.text
        assert wrong == {}
