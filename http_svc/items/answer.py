"""The answer of `/v1/responses` as it grows: items, and the events of their changes. Pure."""

from typing import Any

from http_svc.items.body import FlatChoice, ResponsesBody
from http_svc.responses import usage_of
from http_svc.tools import CallReader
from specinfer.client import Answer

Event = dict[str, Any]
_COMPLETED, _INCOMPLETE, _RUNNING = "completed", "incomplete", "in_progress"


class ItemWriter:
    """Makes items of the text of one answer, and events of their changes."""

    def __init__(self, identity: str, tools: bool) -> None:
        """Create a writer for an answer with this id; with `tools` it may be calls."""
        self._identity = identity
        self._reader = CallReader(f"call_{identity}") if tools else None
        self.items: list[dict[str, Any]] = []
        """Items so far."""

    @property
    def called(self) -> bool:
        """True if the answer is calls, and the last one has ended."""
        return self._reader is not None and self._reader.complete

    def push(self, text: str) -> list[Event]:
        """Return the events of the next piece of text."""
        if not text:
            return []
        if self._reader is None:
            return self._say(text)
        delta = self._reader.push(text)
        events = self._say(delta["content"]) if "content" in delta else []
        for call in delta.get("tool_calls", ()):
            events += self._call(call)
        return events

    def end(self, complete: bool) -> list[Event]:
        """Return the last events; an answer without any text is an empty message."""
        events = [] if self.items else self._say("")
        return events + self._close(_COMPLETED if complete else _INCOMPLETE)

    def _say(self, text: str) -> list[Event]:
        events = []
        if not self.items:
            events += self._open(
                {"type": "message", "id": f"msg_{self._identity}", "role": "assistant", "content": []}
            )
            part = _part("")
            self.items[-1]["content"].append(part)
            events.append(self._event("response.content_part.added", content_index=0, part=dict(part)))
        self.items[-1]["content"][0]["text"] += text
        if text:
            events.append(self._event("response.output_text.delta", content_index=0, delta=text, logprobs=[]))
        return events

    def _call(self, delta: dict[str, Any]) -> list[Event]:
        function, events = delta["function"], []
        if "id" in delta:
            events += self._close(_COMPLETED)
            identity = f"fc_{delta['id'].removeprefix('call_')}"
            call = {"type": "function_call", "id": identity, "call_id": delta["id"], "name": function["name"]}
            events += self._open({**call, "arguments": ""})
        self.items[-1]["arguments"] += function["arguments"]
        if function["arguments"]:
            events.append(self._event("response.function_call_arguments.delta", delta=function["arguments"]))
        return events

    def _open(self, item: dict[str, Any]) -> list[Event]:
        self.items.append({**item, "status": _RUNNING})
        shown = {**self.items[-1], **({"content": []} if item["type"] == "message" else {})}
        return [{"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shown}]

    def _close(self, status: str) -> list[Event]:
        """End the last item, if there is one."""
        if not self.items:
            return []
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "message":
            part = dict(item["content"][0])
            text = self._event("response.output_text.done", content_index=0, text=part["text"], logprobs=[])
            events = [text, self._event("response.content_part.done", content_index=0, part=part)]
        else:
            given = {"name": item["name"], "arguments": item["arguments"]}
            events = [self._event("response.function_call_arguments.done", **given)]
        done = {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}
        return [*events, done]

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def response_object(body: ResponsesBody, identity: str, model: str, created: int) -> dict[str, Any]:
    """Return an answer that has just begun; it repeats what was asked for."""
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
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"} if form is None else _format(form.type, form.content)},
        "tool_choice": choice.model_dump() if isinstance(choice, FlatChoice) else choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _format(kind: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": kind} if schema is None else {"type": kind, "name": "answer", "schema": schema}


def ended(begun: dict[str, Any], writer: ItemWriter, answer: Answer, complete: bool) -> dict[str, Any]:
    """Return the whole answer."""
    usage = usage_of([answer], 1)
    return {
        **begun,
        "status": _COMPLETED if complete else _INCOMPLETE,
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "output": writer.items,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
            "speculation": usage["speculation"],
        },
    }
