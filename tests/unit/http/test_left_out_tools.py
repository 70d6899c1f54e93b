"""Tools that are not functions are ignored with a log line, unless the model must call one."""

import logging
from typing import Any

import pytest
from pydantic import ValidationError

from http_svc.body.bodies import ChatBody
from http_svc.items.body import ResponsesBody

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
CHAT = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
RESPONSES = {"type": "function", "name": "f", "parameters": PARAMETERS}
NOT_FUNCTIONS = [
    {"type": "web_search"},
    {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}},
    {"type": "local_shell"},
]
LOGGER = "http_svc.body.tools"


def chat(tools: list[dict[str, Any]], **more: Any) -> ChatBody:
    return ChatBody.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": tools, **more}
    )


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_chat_ignores_them(choice: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        body = chat([NOT_FUNCTIONS[0], CHAT, *NOT_FUNCTIONS[1:]], **choice)
    assert [tool.function.name for tool in body.tools or ()] == ["f"]
    assert caplog.messages == ["ignored tools that are not functions: custom, local_shell, web_search"]


def test_responses_ignore_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        body = ResponsesBody.model_validate(
            {"model": "m", "input": "a", "tools": [*NOT_FUNCTIONS, RESPONSES]}
        )
    assert [tool.name for tool in body.tools or ()] == ["f"]
    assert caplog.messages == ["ignored tools that are not functions: custom, local_shell, web_search"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_they_are_refused_if_a_call_is_required(choice: Any) -> None:
    with pytest.raises(ValidationError, match="tools"):
        chat([CHAT, NOT_FUNCTIONS[0]], tool_choice=choice)


def test_functions_alone_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        chat([CHAT])
    assert not caplog.messages


def test_a_tool_without_a_type_is_a_mistake() -> None:
    with pytest.raises(ValidationError, match="tools"):
        chat([{"function": {"name": "f"}}])


ODD_NAMES = ["two words", 'a"b', "a<b>", "x" * 257, "line\n"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_functions_whose_names_no_call_can_have_are_ignored(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"type": "function", "function": {"name": name}}
    with caplog.at_level(logging.INFO, LOGGER):
        body = chat([CHAT, odd])
        flat = {"model": "m", "input": "a", "tools": [RESPONSES, {"type": "function", "name": name}]}
        responses = ResponsesBody.model_validate(flat)
    assert [tool.function.name for tool in body.tools or ()] == ["f"]
    assert [tool.name for tool in responses.tools or ()] == ["f"]
    assert caplog.messages == ["ignored 1 functions with unsupported names"] * 2
    assert chat([odd, CHAT], tool_choice="required").must_call
    with pytest.raises(ValidationError, match="name"):
        chat([odd])


@pytest.mark.parametrize("name", [*ODD_NAMES, "files.read", "suche_für"])
def test_histories_may_have_calls_of_any_name(name: str) -> None:
    call = {"id": "a", "function": {"name": name, "arguments": "{}"}}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    body = ChatBody.model_validate({"model": "m", "messages": turns})
    assert body.messages[1].tool_calls is not None
    assert body.messages[1].tool_calls[0].function.name == name
    item = {"type": "function_call", "call_id": "a", "name": name, "arguments": "{}"}
    ResponsesBody.model_validate({"model": "m", "input": [{"role": "user", "content": "a"}, item]})


def test_log_lines_have_no_text_of_callers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        chat([CHAT, {"type": "my_secret_plan"}, {"type": "custom"}])
    assert caplog.messages == ["ignored tools that are not functions: custom, others"]
