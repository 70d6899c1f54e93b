"""`/v1/messages` by Anthropic's client: answers, streams, schemas, calls, counts and refusals."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from tests.integration.http.test_refusals import nested
from tests.integration.http.test_tools import TIME, WEATHER
from tests.support.network.http_service import JSON, HttpService, http_service
from tests.support.system import running_system

GREEDY: dict[str, Any] = {"temperature": 0}  # the client has no such parameter any more
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "extra_body": GREEDY}
CHAT: dict[str, Any] = {"model": "tiny", "max_tokens": 40, **GREEDY}
SAY: dict[str, Any] = {**ASKED, "system": "be brief", "messages": [{"role": "user", "content": "hi"}]}
TOOLS: list[Any] = [
    {
        "name": tool["function"]["name"],
        "input_schema": tool["function"].get("parameters", {"type": "object", "additionalProperties": False}),
    }
    for tool in (WEATHER, TIME)
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
TURNS: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "well", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "c", "name": "time", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "12:00"}]},
            {"type": "text", "text": "so?"},
        ],
    },
]
SAME_TURNS: list[Any] = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "well",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "12:00"},
    {"role": "user", "content": "so?"},
]


@asynccontextmanager
async def served(redis_url: str) -> AsyncIterator[tuple[HttpService, anthropic.AsyncAnthropic]]:
    async with (
        running_system(redis_url, eos=0) as system,
        http_service(system.address) as http,
        anthropic.AsyncAnthropic(base_url=http.url, api_key="none", max_retries=0) as client,
    ):
        yield http, client


def text_in(message: Any) -> str:
    (block,) = message.content
    assert block.type == "text"
    text: str = block.text
    return text


async def test_answers_are_those_of_conversations(redis_url: str) -> None:
    async with served(redis_url) as (http, client):
        messages = [{"role": "system", "content": "be brief"}, *SAY["messages"]]
        chat = (await http.plain.post("/v1/chat/completions", json=CHAT | {"messages": messages})).json()
        expected = chat["choices"][0]["message"]["content"]
        answer = await client.messages.create(**SAY, metadata={"user_id": "u"})
        assert text_in(answer) == expected
        assert (answer.role, answer.model, answer.stop_reason) == ("assistant", "tiny", "max_tokens")
        usage, of_chat = answer.usage, chat["usage"]
        read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert (read, usage.output_tokens) == (of_chat["prompt_tokens"], 40)
        given = {name: SAY[name] for name in ("model", "system", "messages")}
        assert (await client.messages.count_tokens(**given)).input_tokens == of_chat["prompt_tokens"]

        events = [event async for event in await client.messages.create(**SAY, stream=True)]
        kinds = [event.type for event in events]
        deltas = kinds.count("content_block_delta")
        assert kinds == [
            *("message_start", "content_block_start", *["content_block_delta"] * deltas),
            *("content_block_stop", "message_delta", "message_stop"),
        ]
        assert deltas > 1
        async with client.messages.stream(**SAY) as stream:
            last = await stream.get_final_message()
        assert (text_in(last), last.stop_reason) == (expected, "max_tokens")
        assert last.usage.output_tokens == 40
        stop = expected[1:3]
        ended = await client.messages.create(**SAY, stop_sequences=["\x00", stop])
        assert (text_in(ended), ended.stop_reason) == (expected.partition(stop)[0], "stop_sequence")
        assert ended.stop_sequence == stop


async def test_blocks_become_turns(redis_url: str) -> None:
    """Prompt and answer equal those of the same chat completion."""
    async with served(redis_url) as (http, client):
        for messages, same, more in (
            (TURNS, SAME_TURNS, {}),
            (
                [*TURNS[:1], {"role": "assistant", "content": "so"}],
                [*SAME_TURNS[:1], {"role": "assistant", "content": "so"}],
                {"continue_final_message": True, "add_generation_prompt": False},
            ),
        ):
            answer = await client.messages.create(**ASKED, messages=messages)
            chat = await http.plain.post("/v1/chat/completions", json=CHAT | {"messages": same} | more)
            assert text_in(answer) == chat.json()["choices"][0]["message"]["content"]


async def test_schemas_and_calls(redis_url: str) -> None:
    async with served(redis_url) as (_, client):
        form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        formed = await client.messages.create(**SAY | {"max_tokens": 100}, output_config=form)
        assert (json.loads(text_in(formed))["a"] in ("x", "y"), formed.stop_reason) == (True, "end_turn")

        must: Any = {**SAY, "system": "", "extra_body": {"temperature": 0.9}, "max_tokens": 80}
        must["tools"] = TOOLS[:1]
        must |= {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        answer = await client.messages.create(**must)
        (call,) = answer.content
        assert call.type == "tool_use"
        assert (answer.stop_reason, call.name, set(call.input)) == ("tool_use", "weather", {"city", "days"})
        named: Any = must | {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}
        async with client.messages.stream(**named) as stream:
            last = await stream.get_final_message()
        (streamed,) = last.content
        assert streamed.type == "tool_use"
        assert (streamed.name, set(streamed.input), last.stop_reason) == (
            "weather",
            {"city", "days"},
            "tool_use",
        )
        cut = await client.messages.create(**named | {"max_tokens": 45})
        assert (cut.stop_reason, type(cut.content[0].input)) == ("max_tokens", dict)  # type: ignore[union-attr]


USER: Any = {"role": "user"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages: required"),
    ({"max_tokens": None}, "max_tokens: required"),
    ({"max_tokens": 0}, "max_tokens = 0"),
    ({"messages": [USER | {"content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [USER | {"content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    (
        {"messages": [USER | {"content": [{"type": "tool_result", "tool_use_id": "c"}]}], "tools": nested(1)},
        "tools",
    ),
    ({"system": 5}, "system = 5"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "x"}], "tool_choice": {"type": "any"}},
        "tools[0].type",
    ),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools: two functions"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "foo"}}}},
        "output_config.format.schema",
    ),
    ({"messages": [USER | {"content": "x" * 600}]}, "messages + max_tokens"),
    ({"temperature": -1}, "temperature = -1"),
    ({"container": "c"}, "container = 'c'"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ({"frequency_penalty": 1}, "frequency_penalty = 1: unknown field"),
]


async def test_errors_name_unsupported_fields(redis_url: str) -> None:
    async with served(redis_url) as (http, client):
        plain = {name: value for name, value in SAY.items() if name != "extra_body"}
        for fields, beginning in BAD:
            reply = await http.plain.post("/v1/messages", content=json.dumps(plain | fields), headers=JSON)
            said = reply.json()
            assert (reply.status_code, set(said), set(said["error"])) == (
                400,
                {"type", "error"},
                {"type", "message"},
            )
            assert said["error"]["type"] == "invalid_request_error"
            assert said["error"]["message"].startswith(beginning), (fields, said)
        assert http.metric("calls_total", endpoint="/v1/messages", status="400") == len(BAD)
        with pytest.raises(anthropic.NotFoundError, match="model = 'claude'"):
            await client.messages.create(**SAY | {"model": "claude"})
        with pytest.raises(anthropic.BadRequestError, match="anthropic-version"):
            await client.messages.create(**SAY, extra_headers={"anthropic-version": "2023-01-01"})
