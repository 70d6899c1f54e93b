"""Read and constrain answers in gpt-oss's format, Harmony: messages in channels.

An answer continues `<|start|>assistant`:

    <|channel|>analysis<|message|>THOUGHTS<|end|><|start|>assistant<|channel|>final<|message|>WORDS
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS
"""

import re
from collections.abc import Sequence
from typing import Any

from http_svc.calls.answer import AnswerReader
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.heads import prefixes_of
from http_svc.calls.reader import Delta
from specinfer.text.chat.forms import CHANNEL, CONSTRAIN, END, MESSAGE, START
from specinfer.text.chat.turns import call_id_of

_ENDS = (START, END, "<|call|>", "<|return|>")
"""Texts after which a message ends, if the tokenizer shows them."""
_MESSAGE_END = re.compile(
    rf"(?P<mark>{'|'.join(map(re.escape, _ENDS))})|"
    rf"(?:{'|'.join([prefixes_of([*map(re.escape, end)]) for end in _ENDS])})?\Z"
)
_HEADS = (CHANNEL, MESSAGE, START, " to=functions.")
"""Beginnings of a header; other answers are words."""
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


class HarmonyReader(AnswerReader):
    """Parse the text of one choice: analysis, words and calls."""

    def __init__(self, call_id: str, form: AnswerForm) -> None:
        """Create a reader; the ids of its function calls contain `call_id`."""
        super().__init__(call_id, AnswerForm())
        self._call_id, self._functions = call_id, form.functions
        self._text = ""
        self._header: bool | None = None
        """True within a header; None at the answer's beginning."""
        self._field = "content"
        """Field of the message's text: `content`, `reasoning_content` or `arguments`."""

    @property
    def called(self) -> bool:
        """True if the answer ends with a call."""
        return self._field == "arguments"

    def begin_in_reasoning(self) -> None:
        """Read an answer whose prompt ends within the analysis."""
        self._header, self._field = False, "reasoning_content"

    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Delta]:
        """Return the deltas of new text; its tokens are only counted."""
        self._text += text
        if self._header is None:
            self._header = _begins(self._text, _HEADS)
        deltas = list[Delta]()
        while self._header is not None and (delta := self._next()) is not None:
            deltas += self._kept(delta)
        characters = sum(len(delta.get("reasoning_content", "")) for delta in deltas)
        self.reasoning_tokens += round(len(token_ids) * min(1.0, characters / max(1, len(text))))
        return deltas

    def end(self) -> list[Delta]:
        """Return the deltas of the buffered text, at the answer's end."""
        rest = "" if self._header else self._text
        deltas = self._kept(self._part(rest)) if rest else []
        if self.message.get("tool_calls") and not self.message["content"]:
            self.message["content"] = None
        return deltas

    def _next(self) -> list[Delta] | None:
        """Read a header or text of a message; None: more is needed."""
        if self._header:
            header, mark, rest = self._text.partition(MESSAGE)
            if not mark:
                return None
            self._text, self._header = rest, False
            return self._begin(header)
        end = _MESSAGE_END.search(self._text)
        assert end is not None
        words, self._text = (
            self._text[: end.start()],
            self._text[end.end("mark") :] if end["mark"] else end[0],
        )
        self._header = bool(end["mark"])
        return self._part(words) if words else [] if self._header else None

    def _begin(self, header: str) -> list[Delta]:
        """Begin a header's message, separated from earlier text of its field."""
        called = _RECIPIENT.search(header)
        name = called[1] if called and self._functions is not None else None
        if name is not None and (not self._functions or name in self._functions):
            self._field = "arguments"
            index = len(self.message.get("tool_calls", ()))
            function = {"name": name, "arguments": ""}
            identity = call_id_of(self._call_id, index)
            return [
                {"tool_calls": [{"index": index, "id": identity, "type": "function", "function": function}]}
            ]
        self._field = "reasoning_content" if f"{CHANNEL}analysis" in header else "content"
        return self._part("\n\n") if self.message.get(self._field) else []

    def _part(self, text: str) -> list[Delta]:
        if self._field != "arguments":
            return [{self._field: text}]
        index = len(self.message["tool_calls"]) - 1
        return [{"tool_calls": [{"index": index, "function": {"arguments": text}}]}]


def reader_of(call_id: str, form: AnswerForm) -> AnswerReader | None:
    """Return a parser for a choice's text; None if it needs none."""
    if form.plain:
        return None
    return HarmonyReader(call_id, form) if form.harmony else AnswerReader(call_id, form)


def _begins(text: str, heads: Sequence[str]) -> bool | None:
    """Return whether a text begins with a head; None: unknown yet."""
    if text.startswith(tuple(heads)):
        return True
    return None if any(head.startswith(text) for head in heads) else False


def harmony_rules(wanted: Any) -> list[str]:
    """Return the Lark rules of an answer; `args_i`: arguments of function i.

    `wanted` is `http_svc.calls.grammar.Wanted`.
    """
    text = wanted.text
    channel, message, turn = text(CHANNEL), text(MESSAGE), f'{text(START)} "assistant"'
    kind = f'(" "? {text(CONSTRAIN)} "json" | " json" | " ")?'
    calls = [
        f'call_{i}: ("{to}" {channel} "commentary" | {channel} "commentary{to}") {kind} {message} args_{i}'
        for i, to in enumerate([f" to=functions.{one.name}" for one in wanted.functions])
    ]
    words = wanted.other or ('%json {"type": "object"}' if wanted.any_object else "SAID?")
    free = words == "SAID?" and not wanted.must_call
    answer = "before call" if wanted.must_call else "before (call | final)"
    return [
        f"start: {answer}{' | BARE?' if free else ''}",
        f"start_in_reasoning: SAID? {text(END)} {turn} {answer}",
        f"before: (spoken {turn})*",
        f'spoken: {channel} ("analysis" | "commentary") {message} SAID? {text(END)}',
        *calls,
        f"call: {' | '.join([f'call_{i}' for i in range(len(calls))])}",
        f'final: {channel} "final" {message} words',
        f"words: {words}",
        "SAID: /(?s:.+)/",
        *(["BARE: SAID & ~/ to=(?s:.*)/"] if free else ()),
    ]
