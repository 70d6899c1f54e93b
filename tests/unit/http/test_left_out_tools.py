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
