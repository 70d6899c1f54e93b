"""Build answers and stream events in the formats of OpenAI's API."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from http_svc.calls.answer import AnswerReader, combined
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.harmony import reader_of
from http_svc.calls.reader import Delta
from specinfer.client import (
    Answer,
    FinishReason,
    Piece,
    TokenLogprob,
    TokenLogprobs,
    add_up,
    stats_to_json,
)

_LOWEST = -9999.0
"""Log-probability sent instead of minus infinity, as in vLLM."""


class TextOffsets:
    """Counts the characters before each token of a choice's text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def add(self, token: bytes) -> int:
        """Return the number of complete characters before the next token."""
        begin = self._length
        self._length += len(self._decoder.decode(token))
        return begin


def chat_logprobs(rows: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any]:
    """Return field `logprobs` of a chat completion's choice."""
    content = [{**_entry(row.chosen), "top_logprobs": [_entry(one) for one in row.top]} for row in rows]
    return {"content": content, "refusal": None}


def completion_logprobs(rows: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any]:
    """Return field `logprobs` of a completion's choice.

    `top_logprobs` always includes the generated token.
    """
    return {
        "tokens": [row.chosen.text for row in rows],
        "token_logprobs": [_number(row.chosen) for row in rows],
        "top_logprobs": [{one.text: _number(one) for one in (*row.top, row.chosen)} for row in rows],
        "text_offset": [offsets.add(row.chosen.token) for row in rows],
    }


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": _number(token), "bytes": list(token.token)}


def _number(token: TokenLogprob) -> float:
    return max(token.logprob, _LOWEST)


_FINISH = {
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.CONSTRAINT: "stop",
}
"""The API's finish reason by ours; other reasons keep their names."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Format of answers: chat completions or completions."""

    prefix: str
    """Prefix of an answer's id."""
    whole: str
    """Value of `object` without streaming."""
    chunk: str
    """Value of `object` in a stream's events."""
    message: Callable[[str], dict[str, Any]]
    """Return a choice's content for its whole text."""
    delta: Callable[[str], dict[str, Any]]
    """Return a choice's content for a piece of its text."""
    logprobs: Callable[[Sequence[TokenLogprobs], TextOffsets], dict[str, Any]]
    """Return a choice's field `logprobs`."""
    opening: dict[str, Any] | None
    """Content of each choice's first event (without text); None: no such event."""


CHAT = Kind(
    prefix="chatcmpl-",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    message=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    delta=lambda text: {"delta": {"content": text} if text else {}},
    logprobs=chat_logprobs,
    opening={"delta": {"role": "assistant", "content": ""}},
)
COMPLETION = Kind(
    prefix="cmpl-",
    whole="text_completion",
    chunk="text_completion",
    message=lambda text: {"text": text},
    delta=lambda text: {"text": text},
    logprobs=completion_logprobs,
    opening=None,
)


_PLAIN = AnswerForm()


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """Builds the answer or the events of one call."""

    kind: Kind
    request_id: str
    model: str
    created: int
    """Seconds since 1970."""
    usage_comes: bool = False
    """True if a stream ends with the token counts."""
    logprobs: bool = False
    """True if log-probabilities are requested."""
    form: AnswerForm = _PLAIN
    """Parts that answers may have."""
    usage_always: bool = False
    """True if every event has the choice's token counts so far."""
    echoed: Sequence[str] = ()
    """By choice, the prompt with which its text begins; empty: without prompts."""

    def reader(self, index: int) -> AnswerReader | None:
        """Return a parser for a choice's text; None if it needs none."""
        return reader_of(f"{self.request_id}_{index}", self.form)

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return a choice's first event; None if the format has none."""
        content = self.kind.delta(self.echoed[index]) if self.echoed else self.kind.opening
        return None if content is None else self._part(index, content, None)

    def part(
        self, index: int, piece: Piece, offsets: TextOffsets, deltas: Sequence[Delta] | None = None
    ) -> dict[str, Any] | None:
        """Return the event of new text or of `deltas`; None if empty."""
        if deltas is None:
            content, has_text = self.kind.delta(piece.text), bool(piece.text)
        else:
            content, has_text = {"delta": combined(deltas)}, bool(deltas)
        if not has_text and not self.logprobs:
            return None
        return self._part(index, content, None, self._logprobs(piece.token_logprobs, offsets))

    def last(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        """Return the event of a reader's last deltas; None without deltas."""
        return self._part(index, {"delta": combined(deltas)}, None) if deltas else None

    def end(self, index: int, finish: FinishReason, reader: AnswerReader | None = None) -> dict[str, Any]:
        return self._part(index, self.kind.delta(""), _finish(finish, reader is not None and reader.called))

    def _logprobs(self, rows: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any] | None:
        return self.kind.logprobs(rows, offsets) if self.logprobs else None

    def usage(
        self, answers: Sequence[Answer], prompts: int, readers: Sequence[AnswerReader | None]
    ) -> dict[str, Any]:
        """Return a stream's last event: the token counts of all choices."""
        return {**self._head(self.kind.chunk), "choices": [], "usage": usage_of(answers, prompts, readers)}

    def whole(
        self, answers: Sequence[Answer], prompts: int, readers: Sequence[AnswerReader | None]
    ) -> dict[str, Any]:
        """Return the whole answer; `readers` contain the parsed choices."""
        read = zip(answers, readers, strict=True)
        choices = [self._choice(index, answer, reader) for index, (answer, reader) in enumerate(read)]
        usage = usage_of(answers, prompts, readers)
        return {**self._head(self.kind.whole), "choices": choices, "usage": usage}

    def _choice(self, index: int, answer: Answer, reader: AnswerReader | None) -> dict[str, Any]:
        text = (self.echoed[index] if self.echoed else "") + answer.text
        content, called = self.kind.message(text), False
        if reader is not None:
            content, called = {"message": reader.message}, reader.called
        return {
            "index": index,
            **content,
            "logprobs": self._logprobs(answer.token_logprobs, TextOffsets()),
            "finish_reason": _finish(answer.finish_reason, called),
        }

    def _part(
        self,
        index: int,
        content: dict[str, Any],
        finish: str | None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}
        none = {"usage": None} if self.usage_comes else {}
        return {**self._head(self.kind.chunk), "choices": [choice], **none}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.kind.prefix + self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def usage_of(
    answers: Sequence[Answer], prompts: int, readers: Sequence[AnswerReader | None] = ()
) -> dict[str, Any]:
    """Return field `usage` of all choices. Each prompt counts once.

    Args:
        answers: all choices of the first prompt, then as many of the second.
        prompts: number of prompts.
        readers: readers of the choices; they have counted the tokens of reasoning.
    """
    choices = len(answers) // prompts
    read = sum(answer.summary.prompt_tokens for answer in answers[::choices])
    cached = sum(answer.summary.cached_tokens for answer in answers[::choices])
    generated = sum(answer.summary.new_tokens for answer in answers)
    return {
        "prompt_tokens": read,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens": generated,
        "completion_tokens_details": {
            "reasoning_tokens": sum(reader.reasoning_tokens for reader in readers if reader is not None)
        },
        "total_tokens": read + generated,
        "speculation": stats_to_json(add_up([answer.stats for answer in answers])),
    }


def usage_so_far(answer: Answer, generated: int) -> dict[str, Any]:
    """Return field `usage` of a choice after `generated` tokens."""
    read = answer.summary.prompt_tokens
    return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


def is_whole(answer: Answer) -> bool:
    """Return whether an answer ended without reaching a limit."""
    return _finish(answer.finish_reason) != "length"


def _finish(reason: FinishReason, called: bool = False) -> str:
    """Return the API's finish reason; `called` if calls end the answer."""
    word = _FINISH.get(reason, reason.value)
    return "tool_calls" if called and word == "stop" else word
