"""Calls of functions: the grammar that an answer follows, and what it says read as it comes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from http_svc.body.tools import Function
from http_svc.tool_schemas import followed

_NAME, _ARGUMENTS = '{"name": ', ', "arguments": '
_BETWEEN = "\n "
"""One of these stands between two calls."""


def call_grammar(functions: Sequence[Function], words_too: bool, several: bool) -> str:
    """Return a grammar of calls of these functions, or with `words_too` an answer in words instead.

    The arguments of function i are line i + 1, so that errors about them name that line.

    Args:
        functions: that may be called.
        words_too: whether an answer may call none.
        several: whether an answer may call more than one.
    """
    arguments = [f"args_{i}: %json {json.dumps(followed(function))}" for i, function in enumerate(functions)]
    calls = [
        f'call_{i}: {json.dumps(_head(function.name))} args_{i} "}}"' for i, function in enumerate(functions)
    ]
    either = " | ".join([f"call_{i}" for i in range(len(functions))])
    rest = " (BETWEEN call)*" if several else ""
    start = f"start: call{rest}" + " | WORDS" * words_too
    between = ["BETWEEN: /[\\n ]/"] * several
    words = ["WORDS: /[^{](?s:.*)/"] * words_too
    return "\n".join([*arguments, *calls, f"call: {either}", start, *between, *words])


def _head(name: str) -> str:
    """Return the beginning of a call."""
    return f"{_NAME}{json.dumps(name)}{_ARGUMENTS}"


@dataclass(slots=True)
class _ObjectEnd:
    """Finds the brace that closes an object in a text that comes in pieces."""

    _depth: int = 0
    _in_text: bool = False
    _escaped: bool = False

    def find(self, text: str) -> int:
        """Return the place of the closing brace in the next piece; -1 if the object goes on."""
        for place, sign in enumerate(text):
            if self._in_text:
                self._in_text = self._escaped or sign != '"'
                self._escaped = sign == "\\" and not self._escaped
            elif sign == '"':
                self._in_text = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    return place
        return -1


class CallReader:
    """Reads the text of one choice as it comes."""

    def __init__(self, call_id: str) -> None:
        """Create a reader; calls behind the first have its id with a number."""
        self._call_id = call_id
        self.is_call: bool | None = None
        """True for calls; None before there is any text."""
        self._count = 0
        """Calls that have begun."""
        self._end: _ObjectEnd | None = None
        """End of the call that has begun; None between calls."""
        self._head: str | None = None
        """Head of the call so far; None once its arguments come."""

    @property
    def complete(self) -> bool:
        """True if the text so far is calls, and the last one has ended."""
        return bool(self.is_call) and self._end is None

    def push(self, text: str) -> dict[str, Any]:
        """Return the next delta of a stream; empty if there is nothing yet."""
        if text and self.is_call is None:
            self.is_call = text.startswith("{")
        if not self.is_call:
            return {"content": text} if text else {}
        calls: list[dict[str, Any]] = []
        while text:
            if self._end is None:
                text = text.lstrip(_BETWEEN)
                if text:
                    self._end, self._head, self._count = _ObjectEnd(), "", self._count + 1
                continue
            place = self._end.find(text)
            part, text = (text, "") if place < 0 else (text[:place], text[place + 1 :])
            calls += self._part(part)
            if place >= 0:
                self._end = None
        return {"tool_calls": calls} if calls else {}

    def _part(self, text: str) -> list[dict[str, Any]]:
        """Return what a piece of one call says, its last brace left out."""
        number = self._count - 1
        if self._head is None:
            return [{"index": number, "function": {"arguments": text}}] if text else []
        self._head += text
        head, mark, arguments = self._head.partition(_ARGUMENTS)
        if not mark:
            return []
        self._head = None
        name = json.loads(head.removeprefix(_NAME))
        identity = self._call_id if number == 0 else f"{self._call_id}_{number}"
        function = {"name": name, "arguments": arguments}
        return [{"index": number, "id": identity, "type": "function", "function": function}]


def message_of(text: str, call_id: str) -> tuple[dict[str, Any], bool]:
    """Return the message of a whole answer, and whether it is calls that have ended."""
    reader = CallReader(call_id)
    calls = reader.push(text).get("tool_calls", ())
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else text, "refusal": None}
    if not calls:
        return message, False
    whole = [{name: value for name, value in call.items() if name != "index"} for call in calls]
    return message | {"tool_calls": whole}, reader.complete
