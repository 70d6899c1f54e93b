"""Read Qwen3-Coder's calls: XML elements into JSON arguments, while they stream.

Values have no escapes: a value that begins on its own line ends where the closing mark has a line of its own and a
parameter or the function's end follows. `elements.py` writes the grammar with the same ends.
"""

import json
import re
from dataclasses import dataclass

from http_svc.calls.elements import CLOSE, FUNCTION_END, LINE_END, PARAMETER, Kinds, read_value
from http_svc.calls.heads import prefixes_of

_HEAD = re.compile(rf"\s*{PARAMETER}(?P<name>[^<>\n]{{1,200}})>(?=(?P<line>\n)|[^\n])")
_FUNCTION_END = re.compile(rf"\s*{FUNCTION_END}")
_FOLLOWS = f"(?={PARAMETER}|{FUNCTION_END})"
_END = re.compile(rf"\n{CLOSE}{LINE_END}{_FOLLOWS}")
_INLINE_END = re.compile(rf"\n?{CLOSE}\s{{0,42}}{_FOLLOWS}")
_NEXT = "|".join([prefixes_of([*map(re.escape, mark)]) for mark in (PARAMETER, FUNCTION_END)])
_MAY_END = re.compile(rf"\n?(?:{prefixes_of([*map(re.escape, CLOSE)])}|{CLOSE}\s{{0,42}}(?:{_NEXT})?)?\Z")
"""The longest end of a text that may become a value's end."""


@dataclass(slots=True)
class ElementReader:
    """Reader of the elements of one call."""

    kinds: Kinds
    _name: str | None = None
    """Name of the incomplete parameter."""
    _end: re.Pattern[str] = _END
    _value: str = ""
    """Beginning of the value that was not returned."""
    _streams: bool = False
    """True once a part of the value was returned, as a string."""
    _begun: bool = False
    """True after the first parameter's name."""

    def read(self, text: str) -> tuple[str, str, bool]:
        """Return (new JSON, text that is left, whether the call is complete)."""
        written = ""
        while True:
            if self._name is None:
                if (end := _FUNCTION_END.match(text)) is not None:
                    return written + ("}" if self._begun else "{}"), text[end.end() :], True
                if (head := _HEAD.match(text)) is None:
                    return written, text, False
                written += self._begin(head)
                text = text[head.end() :]
            part, text = self._read_value(text)
            written += part
            if self._name is not None:
                return written, text, False

    def _begin(self, head: re.Match[str]) -> str:
        """Begin a parameter.

        The line break before its value stays, since it may begin the value's end, too.
        """
        separator, self._begun = ", " if self._begun else "{", True
        self._name, self._end = head["name"], _END if head["line"] else _INLINE_END
        self._value, self._streams = "", False
        return f"{separator}{json.dumps(self._name, ensure_ascii=False)}: "

    def _read_value(self, text: str) -> tuple[str, str]:
        """Return new JSON of the value, and the text that is left."""
        assert self._name is not None
        kinds = self.kinds.get(self._name, frozenset())
        end = self._end.search(text)
        undecided = end or _MAY_END.search(text)
        assert undecided is not None
        self._value, left = self._value + text[: undecided.start()], text[undecided.start() :]
        if end is None:
            return self._stream(kinds), left
        self._name, left = None, text[end.end() :]
        if self._streams:
            return f'{_escaped(self._value)}"', left
        own_line = end.re is _END
        return read_value(self._value[1:] if own_line else self._value, kinds), left

    def _stream(self, kinds: frozenset[str]) -> str:
        """Return the value so far, if it must be a string."""
        opening, value = "", self._value
        if not self._streams:
            value = value.removeprefix("\n") if self._end is _END else value
            if not value or "string" not in kinds or kinds - {"string", "null"}:
                return ""
            if kinds != {"string"} and any(one.startswith(value.strip()) for one in ("null", "None")):
                return ""
            opening, self._streams = '"', True
        self._value = ""
        return opening + _escaped(value)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
