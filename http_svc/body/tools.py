"""Functions that the model may call, and function calls of earlier messages."""

import json
import logging
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from http_svc.body.fields import Ignored, Lenient, Schema, Strict, Text, writable
from http_svc.calls.heads import MAX_NAME, NAME

log = logging.getLogger(__name__)
Name = Annotated[str, Field(pattern=NAME, max_length=MAX_NAME)]


class Function(Strict):
    """A function that the model may call."""

    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    """JSON schema of the arguments; None: no arguments."""
    strict: bool | None = None
    """True: unsupported schema keywords are refused; otherwise they are ignored."""


class Tool(Strict):
    """A tool of type `function`, the only supported type."""

    type: Literal["function"]
    function: Function
    cache_control: Ignored = None


_KNOWN = frozenset(
    [
        "code_interpreter",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "web_search",
    ]
)
"""OpenAI's types of tools.

Other types are callers' text, which log lines must not contain.
"""


def usable_only(data: Any) -> Any:
    """Drop functions with unusable names and, unless `tool_choice` requires a tool, other tools."""
    tools = data.get("tools") if isinstance(data, dict) else None
    if not isinstance(tools, list):
        return data
    optional = data.get("tool_choice") in (None, "auto", "none") or _mode_of(data["tool_choice"]) == "auto"
    functions = [tool for tool in tools if not (optional and is_other_kind(tool))]
    # functions that are all unusable are refused, with the name's field
    usable = [tool for tool in functions if not _has_odd_name(tool)] or functions
    if kinds := {tool["type"] for tool in tools if optional and is_other_kind(tool)}:
        shown = sorted({kind if kind in _KNOWN else "others" for kind in kinds})
        log.info("ignored tools that are not functions: %s", ", ".join(shown))
    if odd := len(functions) - len(usable):
        log.info("ignored %d functions with unsupported names", odd)
    return data | {"tools": usable}


def _mode_of(choice: Any) -> Any:
    """Return the mode of `tool_choice` in the form `allowed_tools`."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    allowed = choice.get("allowed_tools", choice)
    return allowed.get("mode") if isinstance(allowed, dict) else None


def is_other_kind(tool: Any) -> bool:
    """Return whether a tool is not a function."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.isidentifier() and kind != "function"


def _has_odd_name(tool: Any) -> bool:
    """Return whether some form of calls cannot express a function's name."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return isinstance(name, str) and name != "" and (len(name) > MAX_NAME or not re.fullmatch(NAME, name))


class ChosenFunction(Strict):
    """Field `function` of `tool_choice`."""

    name: Name


class ChosenTool(Strict):
    """Object form of `tool_choice`: the function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


_NO_JSON = (ValueError, TypeError)
"""Errors of `from_json` for invalid JSON and for lone surrogates."""


def _object_text(given: Any) -> Any:
    """Return an earlier call's arguments as the text of a JSON object.

    Clients send earlier calls again: with "" or null for no arguments, or with an incomplete object after an answer
    was cut off. Values that cannot be repaired are returned unchanged.
    """
    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
        return "{}"
    if isinstance(given, dict):
        return json.dumps(writable(given), ensure_ascii=False)
    if not isinstance(given, str):
        return given
    try:
        from_json(given)
    except _NO_JSON:
        return _completed(given)
    return given


def _completed(text: str) -> str:
    """Complete a JSON object that was cut off.

    Other texts are returned unchanged, and the gateway refuses them.
    """
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except _NO_JSON:
        return text
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else text


class CalledFunction(Lenient):
    """Name and arguments of a function call in an earlier message."""

    name: Annotated[Text, Field(min_length=1)]
    arguments: Annotated[Text, BeforeValidator(_object_text)] = "{}"
    """Arguments as the text of a JSON object."""


class ToolCall(Lenient):
    """A function call in an earlier message."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
