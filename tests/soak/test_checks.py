"""The checks of a soak find each problem, and servers accept the random conversations."""

import json
import random
from typing import Any

import pytest

from http_svc.body.bodies import ChatBody
from tests.soak.checks import joined, problems_of
from tests.soak.conversations import SCHEMA, TOOLS, openings, options, with_results

TOOL = {"type": "function", "function": TOOLS[0]}
FORMED = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}


def call(arguments: str = '{"city": "Köln"}', name: str = "get_weather") -> dict[str, Any]:
    return {"id": "abcdefgh1", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(end: str | None = "stop", content: str | None = "a", *calls: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}
    return {"choices": [{"message": message, "finish_reason": end}]}


@pytest.mark.parametrize(
    ("body", "actual", "words"),
    [
        ({}, answer(), ""),
        ({}, answer(None), "without an end"),
        ({}, answer("error"), "without an end"),
        ({"n": 2}, answer(), "1 choices"),
        ({"tools": [TOOL]}, answer("tool_calls", None, call()), ""),
        ({"tools": [TOOL]}, answer("tool_calls"), "without calls"),
        ({"tools": [TOOL]}, answer("tool_calls", None, call("{")), "no JSON"),
        ({"tools": [TOOL]}, answer("length", None, call("{")), ""),
        ({"tools": [TOOL]}, answer("tool_calls", None, call("{}")), "do not follow"),
        ({"tools": [TOOL]}, answer("tool_calls", None, call(name="other")), "was not offered"),
        ({"tools": [TOOL], "tool_choice": "required"}, answer(), "no call"),
        ({"tools": [TOOL], "tool_choice": "none"}, answer("stop", "", call()), "must be none"),
        (FORMED, answer("stop", '{"done": true, "steps": [], "size": 1}'), ""),
        (FORMED, answer("stop", '{"done": true}'), "do not follow"),
        (FORMED, answer("stop", "a"), "no JSON"),
    ],
)
def test_answers(body: dict[str, Any], actual: dict[str, Any], words: str) -> None:
    problems = problems_of(body, actual)
    assert [words in problem for problem in problems] == ([True] if words else [])


def part(delta: dict[str, Any], end: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": end}]})


def test_a_stream_is_the_answer_that_its_parts_make() -> None:
    begin = {"index": 0, **call("")}
    lines = [
        part({"role": "assistant", "content": ""}),
        ": a comment",
        part({"reasoning_content": "Hm."}),
        part({"content": "Well."}),
        part({"tool_calls": [begin]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
        part({"tool_calls": [{"index": 0, "function": {"arguments": '"Köln"}'}}]}),
        part({}, "tool_calls"),
        "data: [DONE]",
    ]
    whole, problems = joined(lines)
    assert not problems
    assert problems_of({"tools": [TOOL]}, whole) == []
    (choice,) = whole["choices"]
    assert choice["message"]["tool_calls"] == [call()]
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("Well.", "Hm.")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([part({"content": "a"}, "stop")], "without [DONE]"),
        (["data: [DONE]", part({}, "stop")], "behind [DONE]"),
        ([part({}, "stop"), part({"content": "a"}), "data: [DONE]"], "behind the end"),
        (['data: {"error": {"message": "x"}}', "data: [DONE]"], "an error"),
    ],
)
def test_streams_that_are_broken(lines: list[str], words: str) -> None:
    assert words in joined(lines)[1][0]


def test_a_stream_that_stops_in_the_middle_has_no_end() -> None:
    whole, _ = joined([part({"content": "a"}), "data: [DONE]"])
    assert "without an end" in problems_of({}, whole)[0]


def test_conversations_are_calls_that_are_taken() -> None:
    kinds = set[str]()
    for seed in range(300):
        choices = random.Random(seed)
        turns = openings(choices)
        for _ in range(3):
            body = {"model": "m", "messages": turns, **options(choices)}
            ChatBody.model_validate(json.loads(json.dumps(body)))
            kinds |= body.keys()
            message = answer("tool_calls", None, call())["choices"][0]["message"]
            turns = with_results(turns, message, choices)
    assert {"tools", "tool_choice", "response_format", "chat_template_kwargs", "stream", "n"} <= kinds
