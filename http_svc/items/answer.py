"""Build the answer of `/v1/responses`: items and their events."""

from collections.abc import Sequence
from typing import Any

from http_svc.body.choice import dumped_choice
from http_svc.calls.answer import AnswerReader
from http_svc.calls.reader import Delta
from http_svc.items.body import ResponsesBody
from http_svc.responses import is_whole, usage_of
from specinfer.client import Answer

Event = dict[str, Any]
_TEXT_EVENT = {"message": "response.output_text", "reasoning": "response.reasoning_text"}
_FIELDS: dict[str, dict[str, Any]] = {"message": {"role": "assistant"}, "reasoning": {"summary": []}}
_MORE: dict[str, dict[str, Any]] = {"message": {"logprobs": []}, "reasoning": {}}
"""Fields that an item's text events have in addition, by item type."""
_COMPLETED, _INCOMPLETE, _RUNNING = "completed", "incomplete", "in_progress"


class ItemWriter:
    """Converts an answer's text to items and their stream events."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self.items: list[dict[str, Any]] = []
        """Items of the answer so far."""

    def push(self, text: str, deltas: Sequence[Delta] | None = None) -> list[Event]:
        """Add text, or instead its `AnswerReader`'s deltas; return the events."""
        if deltas is None:
            return self._say(text) if text else []
        events = list[Event]()
        for delta in deltas:
            if "reasoning_content" in delta:
                events += self._think(delta["reasoning_content"])
            if "content" in delta:
                events += self._say(delta["content"])
            for call in delta.get("tool_calls", ()):
                events += self._call(call)
        return events

    def end(self, complete: bool) -> list[Event]:
        """End the answer, with at least one message; return its last events."""
        events = [] if self.items else self._say("")
        return events + self._close(_COMPLETED if complete else _INCOMPLETE)

    def _say(self, text: str) -> list[Event]:
        return self._add_text(text, "message", "msg", _part(""))

    def _think(self, text: str) -> list[Event]:
        return self._add_text(text, "reasoning", "rs", {"type": "reasoning_text", "text": ""})

    def _add_text(self, text: str, kind: str, prefix: str, part: dict[str, Any]) -> list[Event]:
        """Add text to the last item of `kind`, or a new item."""
        events = list[Event]()
        if not self.items or self.items[-1]["type"] != kind:
            events += self._close(_COMPLETED)
            number = f"_{len(self.items)}" if self.items else ""
            item: dict[str, Any] = {"type": kind, "id": f"{prefix}_{self._identity}{number}"}
            item |= _FIELDS[kind]
            events += self._open({**item, "content": []})
            self.items[-1]["content"].append(part)
            events.append(self._event("response.content_part.added", content_index=0, part=dict(part)))
        self.items[-1]["content"][0]["text"] += text
        if text:
            more = _MORE[kind]
            events.append(self._event(f"{_TEXT_EVENT[kind]}.delta", content_index=0, delta=text, **more))
        return events

    def _call(self, delta: dict[str, Any]) -> list[Event]:
        function, events = delta["function"], []
        if "id" in delta:
            events += self._close(_COMPLETED)
            identity = f"fc_{delta['id']}"
            call = {"type": "function_call", "id": identity, "call_id": delta["id"], "name": function["name"]}
            events += self._open({**call, "arguments": ""})
        self.items[-1]["arguments"] += function["arguments"]
        if function["arguments"]:
            events.append(self._event("response.function_call_arguments.delta", delta=function["arguments"]))
        return events

    def _open(self, item: dict[str, Any]) -> list[Event]:
        self.items.append({**item, "status": _RUNNING})
        shown = {**self.items[-1], **({"content": []} if "content" in item else {})}
        return [{"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shown}]

    def _close(self, status: str) -> list[Event]:
        """End the last item; return its events, none without items."""
        if not self.items:
            return []
        item = self.items[-1]
        item["status"] = status
        if item["type"] != "function_call":
            part, more = dict(item["content"][0]), _MORE[item["type"]]
            done = f"{_TEXT_EVENT[item['type']]}.done"
            text = self._event(done, content_index=0, text=part["text"], **more)
            events = [text, self._event("response.content_part.done", content_index=0, part=part)]
        else:
            given = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._event("response.function_call_arguments.done", **given)]
        ended = {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}
        return [*events, ended]

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def response_object(body: ResponsesBody, identity: str, model: str, created: int) -> dict[str, Any]:
    """Return the answer's object before it has items, with the request's fields."""
    form = body.text.format if body.text else None
    choice = body.tool_choice
    return {
        "id": f"resp_{identity}",
        "object": "response",
        "created_at": created,
        "status": _RUNNING,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"} if form is None else _format(form.type, form.content)},
        "tool_choice": _flat(dumped_choice(choice or "auto")),
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _flat(choice: Any) -> Any:
    """Return a choice in flat form, as `/v1/responses` writes it."""
    if not isinstance(choice, dict):
        return choice
    inner = choice.get("function") or choice.get("allowed_tools") or choice
    tools = {"tools": [_flat(tool) for tool in inner["tools"]]} if "tools" in inner else {}
    return {"type": choice["type"], **inner, **tools}


def _format(kind: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": kind} if schema is None else {"type": kind, "name": "answer", "schema": schema}


def ended(
    begun: dict[str, Any], writer: ItemWriter, answer: Answer, reader: AnswerReader | None
) -> dict[str, Any]:
    usage, complete = usage_of([answer], 1, [reader]), is_whole(answer)
    return {
        **begun,
        "status": _COMPLETED if complete else _INCOMPLETE,
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "output": writer.items,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
            "speculation": usage["speculation"],
        },
    }
