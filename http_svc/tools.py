"""Tools: what a request offers, and the calls that an answer makes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from http_svc.fields import Strict, Text

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(Strict):
    """A function that can be called."""

    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    """A schema of the arguments; None: no arguments."""
    strict: bool | None = None
    """Arguments follow their schema in any case."""


class Tool(Strict):
    """The only kind of tool: a function."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Strict):
    """A function's name."""

    name: Name


class ChosenTool(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class CalledFunction(Strict):
    """A function and its arguments in an earlier call."""

    name: Name
    arguments: Text
    """A JSON object."""


class ToolCall(Strict):
    """A call of an earlier turn."""

    id: Text
    type: Literal["function"]
    function: CalledFunction


_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance's options of arguments: one form only."""
_NAME, _ARGUMENTS = '{"name": ', ', "arguments": '
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(functions: Sequence[Function], words_too: bool) -> str:
    """Return a grammar of a call of one of these functions, or with `words_too` an answer in words instead.

    The arguments of function i are line i + 1, so that errors about them name that line.
    """
    arguments = [f"args_{i}: %json {json.dumps(_schema(function))}" for i, function in enumerate(functions)]
    calls = [
        f'call_{i}: {json.dumps(_head(function.name))} args_{i} "}}"' for i, function in enumerate(functions)
    ]
    either = " | ".join([f"call_{i}" for i in range(len(functions))] + ["WORDS"] * words_too)
    words = ["WORDS: /[^{](?s:.*)/"] * words_too
    return "\n".join([*arguments, *calls, f"start: {either}", *words])


def _schema(function: Function) -> dict[str, Any]:
    schema = _NO_ARGUMENTS if function.parameters is None else {"type": "object"} | function.parameters
    return {**schema, "x-guidance": _COMPACT}


def _head(name: str) -> str:
    """Return the beginning of a call."""
    return f"{_NAME}{json.dumps(name)}{_ARGUMENTS}"


@dataclass(slots=True)
class CallReader:
    """Reads the text of one choice as it comes."""

    call_id: str
    is_call: bool | None = None
    """True for a call; None before there is any text."""
    _held: str = ""
    """Text not sent yet: the head of a call, later its last character, which may be the brace behind the
    arguments."""
    _named: bool = False

    def push(self, text: str) -> dict[str, Any]:
        """Return the next delta of a stream; empty if there is nothing yet."""
        if text and self.is_call is None:
            self.is_call = text.startswith("{")
        if not self.is_call:
            return {"content": text} if text else {}
        self._held += text
        name = {} if self._named else self._name()
        if not self._named:
            return {}
        arguments, self._held = self._held[:-1], self._held[-1:]
        return _delta(name, arguments) if name or arguments else {}

    def end(self, complete: bool) -> dict[str, Any]:
        """Return the last delta: the rest of a call that was cut off."""
        left, self._held = self._held, ""
        return _delta({}, left) if self._named and left and not complete else {}

    def _name(self) -> dict[str, Any]:
        """Return the delta before the arguments, once the head is complete."""
        head, mark, rest = self._held.partition(_ARGUMENTS)
        if not mark:
            return {}
        self._held, self._named = rest, True
        return {"id": self.call_id, "type": "function", "name": json.loads(head.removeprefix(_NAME))}


def message_of(text: str, call_id: str, complete: bool) -> tuple[dict[str, Any], bool]:
    """Return the message of a whole answer, and whether it is a call."""
    reader = CallReader(call_id)
    parts = [*reader.push(text).get("tool_calls", ()), *reader.end(complete).get("tool_calls", ())]
    message: dict[str, Any] = {"role": "assistant", "content": None if parts else text, "refusal": None}
    if not parts:
        return message, False
    name = parts[0]["function"]["name"]
    arguments = "".join([part["function"]["arguments"] for part in parts])
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return message | {"tool_calls": [call]}, True


def _delta(name: dict[str, Any], arguments: str) -> dict[str, Any]:
    function = {"name": name["name"]} if name else {}
    told = {key: name[key] for key in ("id", "type") if name}
    return {"tool_calls": [{"index": 0, **told, "function": {**function, "arguments": arguments}}]}
