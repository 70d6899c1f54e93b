"""Functions that a caller offers, and calls of earlier turns."""

import json
import logging
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from http_svc.body.fields import Ignored, Lenient, Schema, Strict, Text, writable

log = logging.getLogger(__name__)
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(Strict):
    """A function that can be called."""

    name: Name
    description: Text | None = None
    parameters: Schema | None = None
    """A schema of the arguments; None: no arguments."""
    strict: bool | None = None
    """True: unsupported keywords are refused; else they are ignored."""


class Tool(Strict):
    """The only kind of tool: a function."""

    type: Literal["function"]
    function: Function
    cache_control: Ignored = None


def usable_only(data: Any) -> Any:
    """Return a body without unusable tools, unless the model must call one."""
    if not isinstance(data, dict) or data.get("tool_choice") not in (None, "auto", "none"):
        return data
    tools = data.get("tools")
    if not isinstance(tools, list):
        return data
    unusable = [tool["type"] for tool in tools if _is_unusable(tool)]
    if not unusable:
        return data
    log.info("left out tools that are no functions: %s", ", ".join(sorted({kind[:40] for kind in unusable})))
    return data | {"tools": [tool for tool in tools if not _is_unusable(tool)]}


def _is_unusable(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.isidentifier() and kind != "function"


class ChosenFunction(Strict):
    """A function's name."""

    name: Name


class ChosenTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


_NO_JSON = (ValueError, TypeError)
"""Errors of invalid JSON and of lone surrogates."""


def _object_text(given: Any) -> Any:
    """Return an earlier call's arguments as a JSON object, if possible.

    Clients send back what they got: nothing for a function without arguments, and half an object if an answer
    was cut off.
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
    """Complete an object that was cut off.

    Other texts stay, for the gateway's error.
    """
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except _NO_JSON:
        return text
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else text


class CalledFunction(Lenient):
    """A function and its arguments in an earlier call."""

    name: Name
    arguments: Annotated[Text, BeforeValidator(_object_text)] = "{}"
    """A JSON object."""


class ToolCall(Lenient):
    """A call of an earlier turn."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction
