"""Parse function calls of any form in a streamed answer."""

from dataclasses import dataclass
from typing import Any

from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.element_reader import ElementReader
from http_svc.calls.heads import (
    CLOSER,
    CLOSING,
    ELEMENT,
    END,
    FENCE,
    HEAD,
    UNDECIDED,
    begins_calls,
    may_call,
    name_of,
    without_openers,
)
from specinfer.text.chat.turns import call_id_of

MAX_CALLS = 32
"""Maximum calls of an answer."""
MAX_EQUAL = 3
"""Maximum equal calls in a row; more are dropped."""
_MAX_UNDECIDED = 2048
"""Maximum characters buffered because they may become a call; more are text."""
Delta = dict[str, Any]


@dataclass(slots=True)
class _ObjectEnd:
    """Find the brace that closes a JSON object in streamed text."""

    _depth: int = 0
    _in_text: bool = False
    _escaped: bool = False

    def find(self, text: str) -> int:
        """Return the closing brace's index in the next piece; -1 if absent."""
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


@dataclass(slots=True)
class _Call:
    """A function call, possibly incomplete."""

    name: str
    before: str
    """Text before the function's name in the call's form."""
    arguments: str = ""
    shown: int = 0
    """Number of returned characters of the arguments."""
    closed: bool = False
    """True once the arguments are complete."""

    @property
    def in_object(self) -> bool:
        """True if the call is a JSON object, ended by a brace."""
        return self.before.startswith("{")


class CallReader:
    """Divides the text of one choice into text and function calls."""

    def __init__(self, call_id: str, form: AnswerForm) -> None:
        """Create a reader; the ids of its function calls contain `call_id`."""
        self._call_id, self._form = call_id, form
        self._called: bool | None = None if form.beginnings else True
        """False if the answer has no calls; None if unknown yet."""
        self._text = ""
        self._searched = self._words_until = 0
        """Places in `_text` from which a head, and an opener, may begin."""
        self._calls = list[_Call]()
        """Calls whose name was returned in a delta."""
        self._read = 0
        """Number of calls that were begun, including dropped ones."""
        self._call: _Call | None = None
        """The incomplete call; None if there is none."""
        self._object, self._elements = _ObjectEnd(), ElementReader({})
        self._after_call = False
        self.ended = False
        """True after `MAX_CALLS` calls: further text is ignored."""

    @property
    def complete(self) -> bool:
        """True if there are calls and the last call is complete."""
        return bool(self._calls) and self._call is None

    def push(self, text: str) -> list[Delta]:
        """Add text of the answer; return the deltas that are certain now."""
        self._text += text
        if self._called is None:
            self._called = begins_calls(self._text, self._form)
        if not self._called:
            return [] if self._called is None else self._take_words(len(self._text))
        deltas = list[Delta]()
        while self._text and not self.ended:
            before = len(self._text), self._call, self._after_call
            if self._call is not None:
                deltas += self._read_arguments(self._call)
            elif self._after_call:
                self._read_closer()
            else:
                deltas += self._read_words()
            if (len(self._text), self._call, self._after_call) == before:
                break
        return deltas

    def end(self) -> list[Delta]:
        """Return the deltas of the buffered text, at the answer's end."""
        text, self._text = self._text, ""
        if self.ended or self._after_call or self._call is not None:
            return self._cut_off() if self._call is not None and not self.ended else []
        return [{"content": text}] if text else []

    def _cut_off(self) -> list[Delta]:
        """Return the incomplete call's last delta, unless the call may repeat another."""
        assert self._call is not None
        if self._may_repeat(self._call):
            self._call = None
            return []
        return self._shown(self._call)

    def _read_words(self) -> list[Delta]:
        while (head := HEAD.search(self._text, self._searched)) is not None:
            name, before = name_of(head)
            if may_call(name, before, self._form):
                start = without_openers(self._text, self._words_until, head.start())
                return self._begin(start, head.end(), _Call(name, before))
            self._searched = self._words_until = head.end()
        undecided = UNDECIDED.search(self._text, self._searched)
        assert undecided is not None
        self._searched = undecided.start()
        place = without_openers(self._text, self._words_until, self._searched)
        if len(self._text) - place > _MAX_UNDECIDED:
            place = len(self._text)
        return self._take_words(place)

    def _take_words(self, place: int) -> list[Delta]:
        words, self._text = self._text[:place], self._text[place:]
        self._searched = max(0, self._searched - place)
        self._words_until = max(0, self._words_until - place)
        return [{"content": words}] if words else []

    def _begin(self, start: int, end: int, call: _Call) -> list[Delta]:
        words, self._text = self._text[:start], self._text[end:].lstrip()
        self._searched = self._words_until = 0
        if self._read == MAX_CALLS:
            self.ended = True
        else:
            self._read += 1
            self._call, self._object = call, _ObjectEnd()
            self._elements = ElementReader(self._form.kinds.get(call.name, {}))
        return [{"content": words}] if words else []

    def _read_arguments(self, call: _Call) -> list[Delta]:
        if call.closed:
            return self._read_end(call)
        whole = self._read_elements(call) if call.before == ELEMENT else self._read_json(call)
        if not whole:
            return [] if not call.arguments or self._may_repeat(call) else self._shown(call)
        call.closed = True
        shown = [] if self._repeats(call) else self._shown(call)
        if not call.in_object:
            self._finish()
        return shown

    def _read_json(self, call: _Call) -> bool:
        """Read arguments in JSON; return whether they are complete."""
        place = self._object.find(self._text)
        cut = len(self._text) if place < 0 else place + 1
        call.arguments, self._text = call.arguments + self._text[:cut], self._text[cut:]
        return place >= 0

    def _read_elements(self, call: _Call) -> bool:
        """Read arguments in XML elements into JSON; return whether they are complete."""
        part, self._text, complete = self._elements.read(self._text)
        call.arguments += part
        return complete

    def _read_end(self, call: _Call) -> list[Delta]:
        if (end := END.match(self._text)) is not None:
            self._text = self._text[end.end() :]
            self._finish()
        return []

    def _finish(self) -> None:
        self._call, self._after_call = None, True

    def _may_repeat(self, call: _Call) -> bool:
        """Return whether the last `MAX_EQUAL` calls are equal and begin like this."""
        last = self._calls[-MAX_EQUAL:]
        return (
            len(last) == MAX_EQUAL
            and all(
                (one.name, one.arguments) == (call.name, last[0].arguments) and one is not call
                for one in last
            )
            and last[0].arguments.startswith(call.arguments)
        )

    def _repeats(self, call: _Call) -> bool:
        return self._may_repeat(call) and self._calls[-1].arguments == call.arguments

    def _shown(self, call: _Call) -> list[Delta]:
        """Return a delta with the arguments' new part; empty without one."""
        begins = all(one is not call for one in self._calls)
        part, call.shown = call.arguments[call.shown :], len(call.arguments)
        if begins:
            self._calls.append(call)
        number = len(self._calls) - 1
        if not begins:
            return [{"tool_calls": [{"index": number, "function": {"arguments": part}}]}] if part else []
        identity = call_id_of(self._call_id, number)
        function = {"name": call.name, "arguments": part}
        return [{"tool_calls": [{"index": number, "id": identity, "type": "function", "function": function}]}]

    def _read_closer(self) -> None:
        closer = CLOSER.match(self._text)
        assert closer is not None
        fence = FENCE.search(self._text)
        if fence is not None and fence.start() <= closer.end():
            self._text = self._text[fence.start() :]
            return
        self._text = self._text[closer.end() :]
        if self._text and CLOSING.match(self._text) is None:
            self._after_call = False
