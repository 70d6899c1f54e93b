"""Blocks of `/v1/messages`: reasoning, text and calls, whole and as events."""

from typing import Any

from http_svc.calls.reader import Delta
from http_svc.entry.middleware import access_line
from http_svc.errors import ApiError
from http_svc.messages.answer import MessageAnswer
from http_svc.messages.body import CountBody, MessagesBody, chat_of
from specinfer.client import Answer, Summary

BODY = MessagesBody.model_validate(
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
)
DELTAS: list[Delta] = [
    {"reasoning_content": "we"},
    {"reasoning_content": "ll"},
    {"content": "a"},
    {"content": "b"},
    {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"x": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
]


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks that a client builds of events."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]) | {"json": "", "open": True})
        elif event["type"] == "content_block_delta":
            assert blocks[event["index"]]["open"]
            kind, (name, text) = event["delta"]["type"], list(event["delta"].items())[1]
            name = "json" if kind == "input_json_delta" else name
            blocks[event["index"]][name] += text
        elif event["type"] == "content_block_stop":
            blocks[event["index"]]["open"] = False
    return blocks


def test_each_part_is_a_block() -> None:
    writer = MessageAnswer(BODY, "1", "m")
    events = writer.push("", DELTAS[:3]) + writer.push("", DELTAS[3:]) + writer.end(Answer(), None)
    thought, text, call = joined(events)
    assert (thought["type"], thought["thinking"], thought["signature"]) == ("thinking", "well", "")
    assert (text["type"], text["text"]) == ("text", "ab")
    assert (call["type"], call["id"], call["name"], call["json"]) == ("tool_use", "c", "f", '{"x": 1}')
    assert not any(block["open"] for block in (thought, text, call))
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def test_errors_have_their_types() -> None:
    writer = MessageAnswer(BODY, "1", "m")
    statuses = {
        400: "invalid_request_error",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
    }
    for status, kind in statuses.items():
        assert writer.failure(ApiError(status, "why", "code")) == {
            "type": "error",
            "error": {"type": kind, "message": "why"},
        }


def test_fields_become_those_of_a_conversation() -> None:
    given = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": True}]}
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
    }
    chat = chat_of(CountBody.model_validate(given))
    assert chat.variables == {"enable_thinking": True, "reasoning_effort": "low"}
    assert (chat.messages[0].role, chat.messages[0].content) == ("tool", "Error: ")
    assert chat.callable == []
    plain = chat_of(CountBody.model_validate(given | {"thinking": {"type": "adaptive"}}))
    assert plain.variables == {"reasoning_effort": "low"}


def test_the_line_of_an_unfinished_answer_states_no_times() -> None:
    answer = Answer(summary=Summary(prompt_tokens=38))
    scope: Any = {"method": "POST", "path": "/v1/messages", "state": {"answers": [answer]}}
    assert access_line(scope, 200, 6.0) == (
        "POST /v1/messages 200 caller -, 38 tokens, answer not finished, 6.000 s"
    )
