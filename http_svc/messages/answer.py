"""Write one answer of `/v1/messages`: its blocks, whole or as events."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from http_svc.calls.answer import AnswerReader
from http_svc.calls.reader import Delta
from http_svc.errors import ApiError
from http_svc.messages.body import MessagesBody
from http_svc.responses import is_whole, usage_of
from http_svc.streaming import parts_of
from specinfer.client import Answer, FinishReason

Event = dict[str, Any]
_BEGUN: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""Fields of a new block besides its type, by type."""


class MessageAnswer:
    """One answer of `/v1/messages`."""

    def __init__(self, body: MessagesBody, identity: str, model: str) -> None:
        self._head = {"id": f"msg_{identity}", "type": "message", "role": "assistant", "model": model}
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""
        """Arguments of the latest call so far, as JSON."""

    def whole(self, answer: Answer, reader: AnswerReader | None) -> dict[str, Any]:
        self.push("", parts_of(answer, reader))
        self._close()
        return {
            **self._head,
            "content": self._blocks,
            **_ending(answer, reader),
            "usage": _usage(answer, reader),
        }

    def begin(self, answer: Answer) -> list[Event]:
        begun: Event = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        return [
            {"type": "message_start", "message": {**begun, "usage": _usage(answer, None)}},
            {"type": "ping"},
        ]

    def push(self, text: str, deltas: Sequence[Delta] | None) -> list[Event]:
        events = list[Event]()
        for delta in [Delta(content=text)] if deltas is None else deltas:
            if thought := delta.get("reasoning_content"):
                events += self._add("thinking", "thinking", thought)
            if content := delta.get("content"):
                events += self._add("text", "text", content)
            for call in delta.get("tool_calls", ()):
                events += self._call(call)
        return events

    def end(self, answer: Answer, reader: AnswerReader | None) -> list[Event]:
        last = {"type": "message_delta", "delta": _ending(answer, reader), "usage": _usage(answer, reader)}
        return [*self._close(), last, {"type": "message_stop"}]

    def failure(self, error: ApiError) -> Event:
        return error.as_message

    def _add(self, kind: str, field: str, text: str) -> list[Event]:
        """Add text to the last block, or to a new one of another kind."""
        same = self._blocks and self._blocks[-1]["type"] == kind
        events = [] if same else self._open(kind)
        self._blocks[-1][field] += text
        return [*events, self._event("content_block_delta", delta={"type": f"{kind}_delta", field: text})]

    def _call(self, call: Delta) -> list[Event]:
        function, events = call["function"], list[Event]()
        if "id" in call:
            events = self._open("tool_use", id=call["id"], name=function["name"])
        if part := function["arguments"]:
            self._arguments += part
            delta = {"type": "input_json_delta", "partial_json": part}
            events.append(self._event("content_block_delta", delta=delta))
        return events

    def _open(self, kind: str, **fields: Any) -> list[Event]:
        events = self._close()
        self._blocks.append({"type": kind, **fields, **_BEGUN[kind]})
        return [*events, self._event("content_block_start", content_block=dict(self._blocks[-1]))]

    def _close(self) -> list[Event]:
        """End the last block; return its event, none without blocks."""
        if not self._blocks:
            return []
        if self._blocks[-1]["type"] == "tool_use":  # an answer may end within a call
            read = from_json(self._arguments or "{}", allow_partial="trailing-strings")
            self._blocks[-1]["input"], self._arguments = read, ""
        return [self._event("content_block_stop")]

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "index": len(self._blocks) - 1, **fields}


def _ending(answer: Answer, reader: AnswerReader | None) -> dict[str, Any]:
    reason = "end_turn"
    if not is_whole(answer):
        reason = "max_tokens"
    elif reader is not None and reader.called:
        reason = "tool_use"
    elif answer.finish_reason is FinishReason.STOP_STRING:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.summary.stop_string or None}


def _usage(answer: Answer, reader: AnswerReader | None) -> dict[str, Any]:
    """Return field `usage`; its `input_tokens` are those not found in the cache."""
    usage = usage_of([answer], 1, [reader])
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "speculation": usage["speculation"],
    }
