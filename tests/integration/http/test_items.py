"""`/v1/responses` by OpenAI's client: answers, streams, schemas, calls, and refusals."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from tests.integration.http.test_refusals import nested
from tests.integration.http.test_tools import TIME, WEATHER
from tests.support.network.http_service import JSON, HttpService, error_of, http_service
from tests.support.system import running_system

ASKED: dict[str, Any] = {"model": "tiny", "max_output_tokens": 40, "temperature": 0}
SAY: dict[str, Any] = {**ASKED, "input": "hi", "instructions": "be brief"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}
FLAT: list[Any] = [{"type": "function", **tool["function"]} for tool in (WEATHER, TIME)]
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
    },
    {
        "type": "function_call",
        "id": "f",
        "call_id": "c",
        "name": "time",
        "arguments": "",
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c", "output": "12:00"},
]


@asynccontextmanager
async def served(redis_url: str) -> AsyncIterator[tuple[HttpService, openai.AsyncOpenAI]]:
    async with (
        running_system(redis_url, eos=0) as system,
        http_service(system.address) as http,
        http.openai() as client,
    ):
        yield http, client


async def test_answers_are_those_of_conversations(redis_url: str) -> None:
    async with served(redis_url) as (_, client):
        messages: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        chat = {**ASKED, "max_tokens": ASKED["max_output_tokens"], "messages": messages}
        del chat["max_output_tokens"]
        expected = await client.chat.completions.create(**chat)
        answer = await client.responses.create(**SAY, metadata={"a": "b"}, store=False)
        assert answer.output_text == expected.choices[0].message.content
        assert (answer.status, answer.incomplete_details and answer.incomplete_details.reason) == (
            *("incomplete", "max_output_tokens"),
        )
        assert answer.id == f"resp_{answer._request_id}"
        assert (answer.metadata, answer.instructions) == ({"a": "b"}, "be brief")
        assert answer.usage is not None
        assert expected.usage is not None
        assert answer.usage.input_tokens == expected.usage.prompt_tokens
        assert (answer.usage.output_tokens, answer.usage.total_tokens) == (40, expected.usage.total_tokens)

        events = [event async for event in await client.responses.create(**SAY, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == answer.output_text
        kinds = [event.type.removeprefix("response.") for event in events if "delta" not in event.type]
        assert kinds == [
            *("created", "in_progress", "output_item.added", "content_part.added"),
            *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
        ]
        whole = events[-1]
        assert whole.type == "response.incomplete"
        assert whole.response.output_text == text
        assert whole.response.usage == answer.usage
        ended = await client.responses.create(**SAY, extra_body={"speculation": "off"})
        assert ended.output_text == text


async def test_schemas_and_calls(redis_url: str) -> None:
    async with served(redis_url) as (http, client):
        form: Any = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}
        requested: Any = {**SAY, "max_output_tokens": 100}
        formed = await client.responses.create(**requested, text=form)
        assert formed.status == "completed"
        assert json.loads(formed.output_text)["a"] in ("x", "y")
        async with client.responses.stream(**requested, text=form) as stream:
            assert (await stream.get_final_response()).output_text == formed.output_text

        must: Any = {**ASKED, "input": "hi", "tools": FLAT, "max_output_tokens": 70, "temperature": 0.9}
        must |= {"tool_choice": "required", "parallel_tool_calls": False}
        answer = await client.responses.create(**must)
        (call,) = answer.output
        assert call.type == "function_call"
        assert (answer.status, call.status) == ("completed", "completed")
        assert call.name in ("weather", "time")
        arguments = json.loads(call.arguments)

        seed: Any = {**must, "tool_choice": {"type": "function", "name": "time"}}
        events = [event async for event in await client.responses.create(**seed, stream=True)]
        parts = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        (done,) = [event for event in events if event.type == "response.output_item.done"]
        assert done.item.type == "function_call"
        assert (done.item.name, done.item.arguments) == ("time", "".join(parts))
        assert isinstance(arguments, dict)

        two: Any = {**must, "tools": FLAT[1:], "parallel_tool_calls": True, "max_output_tokens": 60}
        two["extra_body"] = {}
        several = await http.plain.post(
            "/v1/responses", json={k: v for k, v in two.items() if k != "extra_body"}
        )
        items = several.json()["output"]
        assert {item["type"] for item in items} == {"function_call"}


async def test_items_become_turns(redis_url: str) -> None:
    """Prompt and answer equal those of the same chat completion."""
    call = {"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    messages: Any = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12:00"},
    ]
    async with served(redis_url) as (_, client):
        answer = await client.responses.create(**{**ASKED, "input": TURNS, "max_output_tokens": 4})
        same = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=4, temperature=0
        )
        assert answer.usage is not None
        assert same.usage is not None
        assert answer.usage.input_tokens == same.usage.prompt_tokens
        assert answer.output_text == same.choices[0].message.content


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
    ),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0]"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1"}]}, "input"),
    ({"input": [{"type": "reasoning"}], "instructions": None}, "input"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 5}]}, "input.arguments"),
    ({"metadata": {"a": float("nan")}}, "metadata"),
    ({"metadata": {"a": "\ud800"}}, "metadata"),
    ({"metadata": nested(300)}, "metadata"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools[0].type"),
    ({"tools": [*FLAT, FLAT[0]]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "foo"}}}},
        "text.format.schema",
    ),
    ({"input": "x" * 600}, "input + max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"messages": []}, "messages"),
]


async def test_errors_name_unsupported_fields(redis_url: str) -> None:
    async with served(redis_url) as (http, _):
        for fields, param in BAD:
            reply = await http.plain.post("/v1/responses", content=json.dumps(SAY | fields), headers=JSON)
            assert (reply.status_code, error_of(reply)["param"]) == (400, param), (fields, reply.text)
        reply = await http.plain.post("/v1/responses", json=SAY | {"model": "gpt-4"})
        assert reply.status_code == 404
        assert http.metric("calls_total", endpoint="/v1/responses", status="400") == len(BAD)
