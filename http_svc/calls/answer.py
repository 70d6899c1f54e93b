"""Parse a streamed answer: reasoning, text and function calls."""

from collections.abc import Iterable, Sequence
from typing import Any

from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.reader import CallReader, Delta


class _ReasoningReader:
    """Divides an answer into reasoning and the text after it."""

    def __init__(self, marks: tuple[str, str]) -> None:
        self._begin, self._close = marks
        self._text = ""
        self._thinking: bool | None = None
        """True within the reasoning, False after; None if unknown yet."""
        self.thought = False
        """True if there is reasoning."""
        self._returned = False
        """True once a part of the reasoning was returned."""
        self.marked = bool(self._begin)
        """True if the model's form has reasoning."""
        if not self._begin:
            self._thinking = False

    @property
    def over(self) -> bool:
        """True after the reasoning, or without any."""
        return self._thinking is False

    def begin(self) -> None:
        """Begin within the reasoning."""
        self._thinking = self.thought = True

    def push(self, text: str) -> tuple[str, str]:
        """Return the new parts: (reasoning, text after the reasoning)."""
        if self._thinking is False:
            return "", text
        self._text += text
        if self._thinking is None:
            begun = self._text.lstrip()
            if self._begin.startswith(begun):  # true for the empty text, too
                self._thinking = True if begun == self._begin else None
                self._text = "" if self._thinking else self._text
                self.thought = bool(self._thinking)
                return "", ""
            if not begun.startswith(self._begin):
                rest, self._text, self._thinking = self._text, "", False
                return "", rest
            self.begin()
            self._text = begun[len(self._begin) :]
        return self._think()

    def end(self) -> tuple[str, str]:
        """Return the buffered rest: (reasoning, text after the reasoning)."""
        rest, self._text = self._text, ""
        return (rest.rstrip(), "") if self._thinking else ("", rest)

    def _think(self) -> tuple[str, str]:
        if not self._returned:
            self._text = self._text.lstrip()
        place = self._text.find(self._close)
        if place >= 0:
            reasoning, rest = self._text[:place].rstrip(), self._text[place + len(self._close) :]
            self._thinking, self._text = False, ""
            return reasoning, rest
        cut = _undecided(self._text, self._close)
        reasoning, self._text = self._text[:cut], self._text[cut:]
        self._returned = self._returned or bool(reasoning)
        return reasoning, ""


def _undecided(text: str, mark: str) -> int:
    """Return the start of a suffix of white space and incomplete `mark`."""
    for length in range(min(len(mark) - 1, len(text)), -1, -1):
        if text.endswith(mark[:length]):
            return len(text[: len(text) - length].rstrip())
    raise AssertionError("unreachable: every text ends with the empty mark")


class AnswerReader:
    """Parse the text of one choice into OpenAI's message."""

    def __init__(self, call_id: str, form: AnswerForm) -> None:
        """Create a reader; the ids of its function calls contain `call_id`."""
        self._reasoning = _ReasoningReader(form.reasoning)
        self._end_token = form.end_token
        self._read = 0
        self.reasoning_tokens = 0
        """Number of tokens of the reasoning and its marks."""
        self._calls: CallReader | None = None
        if form.functions is not None:
            self._calls = CallReader(call_id, form)
        self._blank = bool(form.reasoning[0])
        """True while white space between reasoning and text is dropped."""
        self.message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        """The message so far: the sum of all returned deltas."""

    @property
    def called(self) -> bool:
        """True if the answer has calls and the last call is complete."""
        return self._calls is not None and self._calls.complete

    @property
    def ended(self) -> bool:
        """True once further text of the answer is ignored."""
        return self._calls is not None and self._calls.ended

    def begin_in_reasoning(self) -> None:
        """Read an answer whose prompt ends within reasoning."""
        if self._reasoning.marked:
            self._reasoning.begin()

    def push(self, text: str, token_ids: Sequence[int] = ()) -> list[Delta]:
        """Return the deltas of new text; its tokens are only counted."""
        was_over = self._reasoning.over
        reasoning, rest = self._reasoning.push(text)
        if not was_over:
            self._count(token_ids, len(rest) / max(1, len(text)))
        return self._divided(reasoning, rest)

    def _count(self, token_ids: Sequence[int], rest: float) -> None:
        """Count reasoning tokens; `rest` is the text's share after the reasoning."""
        self._read += len(token_ids)
        after = 0
        if self._reasoning.over:
            after = round(min(1.0, rest) * len(token_ids))
            if self._end_token in token_ids:
                after = len(token_ids) - 1 - token_ids.index(self._end_token)
        self.reasoning_tokens = self._read - after if self._reasoning.thought else 0

    def end(self) -> list[Delta]:
        deltas = self._divided(*self._reasoning.end())
        deltas += self._kept(self._calls.end() if self._calls is not None else [])
        if self.message.get("tool_calls") and not self.message["content"]:
            self.message["content"] = None
        return deltas

    def _divided(self, reasoning: str, rest: str) -> list[Delta]:
        deltas: list[Delta] = [{"reasoning_content": reasoning}] if reasoning else []
        if self._blank and (reasoning or "reasoning_content" in self.message):
            rest = rest.lstrip()
        self._blank = self._blank and not rest
        if rest:
            deltas += [{"content": rest}] if self._calls is None else self._calls.push(rest)
        return self._kept(deltas)

    def _kept(self, deltas: list[Delta]) -> list[Delta]:
        """Add deltas to the message; return the same deltas."""
        for delta in deltas:
            for name in ("reasoning_content", "content"):
                if name in delta:
                    self.message[name] = self.message.get(name, "") + delta[name]
            if "reasoning_content" in delta:
                self.message["reasoning"] = self.message["reasoning_content"]
            for call in delta.get("tool_calls", ()):
                calls = self.message.setdefault("tool_calls", [])
                if "id" in call:
                    whole = {name: value for name, value in call.items() if name != "index"}
                    calls.append({**whole, "function": dict(call["function"])})
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        return deltas


def combined(deltas: Iterable[Delta]) -> Delta:
    """Merge deltas into one."""
    whole: Delta = {}
    for delta in deltas:
        for name, value in delta.items():
            whole[name] = whole[name] + value if name in whole else value
    if "reasoning_content" in whole:  # vLLM's newer name
        whole["reasoning"] = whole["reasoning_content"]
    return whole
