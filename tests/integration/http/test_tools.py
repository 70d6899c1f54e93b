"""Calls of functions over HTTP with OpenAI's client."""

import json
import re
from typing import Any

import openai
import pytest

from tests.integration.http.test_constraints import served

QUESTION: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "time"}}
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 80, "temperature": 0.9, "messages": QUESTION}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [WEATHER, WEATHER]}, "tools", "two functions are named weather; names must differ"),
    ({"tool_choice": "required"}, "tool_choice", "must name a function of tools"),
    (
        {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "tool_choice",
        "must name a function of tools",
    ),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
    ({"tools": [{"type": "retrieval"}], "tool_choice": "required"}, "tools[0].type", "function"),
    (
        {"tools": [TIME, {"type": "function", "function": {"name": "x", "parameters": {"type": "foo"}}}]},
        "tools",
        "tools: function 'x': Invalid type: foo",
    ),
    (
        {"tools": [TIME], "extra_body": {"structured_outputs": {"grammar": 'start: "a"'}}},
        "structured_outputs.grammar",
        "not supported with tools",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "no call"),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1"}}
                    ],
                }
            ]
        },
        "messages[0].tool_calls[0].arguments",
        "must be a JSON object",
    ),
]


async def test_a_function_that_must_be_called_is_called_with_arguments_of_its_schema(redis_url: str) -> None:
    async with served(redis_url) as client:
        for seed in range(4):
            chosen: Any = [
                {
                    "tools": [WEATHER, TIME],
                    "tool_choice": {"type": "function", "function": {"name": "weather"}},
                },
                {"tools": [TIME], "tool_choice": "required", "parallel_tool_calls": False},
            ][seed % 2]
            answer = await client.chat.completions.create(**ASKED, seed=seed, **chosen)
            (choice,) = answer.choices
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            assert choice.message.tool_calls is not None
            (call,) = choice.message.tool_calls
            assert call.type == "function"
            arguments = json.loads(call.function.arguments)
            assert call.function.name == ("weather" if seed % 2 == 0 else "time")
            assert set(arguments) == ({"city", "days"} if seed % 2 == 0 else set())

            stream = await client.chat.completions.create(**ASKED, seed=seed, stream=True, **chosen)
            parts = [chunk.choices[0] async for chunk in stream]
            pieces = [part for one in parts for part in one.delta.tool_calls or ()]
            assert pieces[0].function is not None
            assert (pieces[0].id, pieces[0].function.name) == (pieces[0].id, call.function.name)
            streamed = "".join([part.function.arguments or "" for part in pieces if part.function])
            assert json.loads(streamed) == arguments
            assert parts[-1].finish_reason == "tool_calls"


async def test_the_model_may_choose_between_words_and_a_call(redis_url: str) -> None:
    """The tiny model does both, depending on the seed."""
    async with served(redis_url) as client:
        kinds = set()
        for seed in range(12):
            bias: Any = {"logit_bias": {93: 3.5}, "parallel_tool_calls": False, "max_tokens": 90}  # {
            answer = await client.chat.completions.create(**ASKED | bias, seed=seed, tools=[WEATHER])
            (choice,) = answer.choices
            if choice.message.tool_calls:
                assert choice.finish_reason in ("tool_calls", "length")  # after text it may be cut off
                kinds.add("call")
            else:
                assert choice.message.content is not None
                assert not choice.message.content.startswith("{")
                kinds.add("words")
        assert kinds == {"call", "words"}
        without = await client.chat.completions.create(**ASKED, tools=[WEATHER], tool_choice="none", seed=3)
        free = await client.chat.completions.create(**ASKED, seed=3)
        assert without.choices[0].message.content == free.choices[0].message.content


async def test_a_repeated_call_ends_the_answer(redis_url: str) -> None:
    continuing: Any = {"logit_bias": {2: 100, 0: -100}, "tools": [TIME]}  # a blank, the end
    async with served(redis_url) as client:
        requested: Any = {**ASKED, **continuing, "max_tokens": 120, "tool_choice": "required"}
        answer = await client.chat.completions.create(**requested)
        (choice,) = answer.choices
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("time", "{}")
        assert choice.finish_reason == "tool_calls"
        assert answer.usage is not None
        assert answer.usage.completion_tokens < 120
        stream = await client.chat.completions.create(**requested, stream=True)
        parts = [chunk.choices[0] async for chunk in stream]
        pieces = [part for one in parts for part in one.delta.tool_calls or ()]
        assert [part.index for part in pieces if part.id] == [0]
        assert parts[-1].finish_reason == "tool_calls"
        one: Any = {"type": "function", "function": {"name": "time"}}
        singles: Any = [
            {"parallel_tool_calls": False},
            {"tool_choice": one},
            {"logit_bias": {0: 100}},
        ]
        for single in singles:
            answer = await client.chat.completions.create(**requested | single)
            assert len(answer.choices[0].message.tool_calls or ()) == 1
            assert answer.choices[0].finish_reason == "tool_calls"


async def test_calls_or_a_constrained_answer(redis_url: str) -> None:
    """Agents with typed answers request both in every turn."""
    form: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {
                "type": "object",
                "properties": {"a": {"const": 1}},
                "required": ["a"],
                "additionalProperties": False,
                "x-guidance": {"whitespace_flexible": False},
            },
        },
    }
    async with served(redis_url) as client:
        kinds = set()
        for seed, sign in enumerate([67, 80]):  # a, n
            requested: Any = {
                **ASKED,
                "seed": seed,
                "logit_bias": {sign: 100},
                "tools": [TIME],
                "response_format": form,
            }
            (choice,) = (await client.chat.completions.create(**requested)).choices
            if choice.message.tool_calls:
                assert choice.finish_reason == "tool_calls"
                kinds.add("call")
            else:
                assert json.loads(choice.message.content or "") == {"a": 1}
                kinds.add("form")
        assert kinds == {"call", "form"}
        must = await client.chat.completions.create(**{**requested, "tool_choice": "required"})
        assert must.choices[0].message.tool_calls


MCP: list[tuple[Any, str, str]] = [
    ({"type": "object", "maxProperties": 0, "propertyNames": {"type": "string"}}, r"\{\}", "propertyNames"),
    (
        {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True, "maxItems": 2},
        r"\[.*\]",
        "uniqueItems",
    ),
    ({"type": "string", "pattern": "^(?=a)", "maxLength": 3}, r'".{0,3}"', "regex parse error"),
]
"""Schema of a field, pattern of the values it allows, and the reason a strict one is refused."""


async def test_unsupported_keywords_are_ignored_unless_the_function_is_strict(
    redis_url: str,
) -> None:
    """MCP tools have such keywords; the others are obeyed."""
    async with served(redis_url) as client:
        for field, left, reason in MCP:
            parameters = {"properties": {"x": field}, "required": ["x"], "additionalProperties": False}
            function: dict[str, Any] = {"name": "mcp", "parameters": parameters}
            requested: Any = {**ASKED, "seed": 1, "tool_choice": "required", "parallel_tool_calls": False}
            tools: Any = [{"type": "function", "function": function}]
            answer = await client.chat.completions.create(**requested, tools=tools)
            (call,) = answer.choices[0].message.tool_calls or ()
            assert call.type == "function"
            assert re.fullmatch(r'\{"x": ' + left + r"\}", call.function.arguments)
            strict: Any = [TIME, {"type": "function", "function": {**function, "strict": True}}]
            with pytest.raises(openai.BadRequestError, match=f"tools: function 'mcp': .*{reason}"):
                await client.chat.completions.create(**ASKED, tools=strict)


async def test_results_of_functions_become_text(redis_url: str) -> None:
    """The template has no tools, so they are written as text: the prompts are equally long."""
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns: Any = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]
    words: Any = [
        *QUESTION,
        {"role": "assistant", "content": json.dumps({"name": "weather", "arguments": {"city": "Rome"}})},
        {"role": "user", "content": "Result of the function: rain"},
    ]
    async with served(redis_url) as client:
        requested = {**ASKED, "seed": 1, "max_tokens": 8}
        reply = await client.chat.completions.create(**requested | {"messages": turns})
        same = await client.chat.completions.create(**requested | {"messages": words})
    assert reply.choices[0].message.content == same.choices[0].message.content
    assert reply.usage is not None
    assert same.usage is not None
    assert reply.usage.prompt_tokens == same.usage.prompt_tokens


async def test_bad_tools_are_refused_by_field(redis_url: str) -> None:
    async with served(redis_url) as client:
        for fields, param, reason in BAD:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**ASKED | fields)
            assert caught.value.param == param, fields
            assert reason in caught.value.message, fields
