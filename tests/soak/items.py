"""Convert conversations into items of `/v1/responses`: bodies, answers, events. Pure."""

import json
import random
from collections.abc import Iterable
from typing import Any

from tests.soak.conversations import RESULTS, Body

_SAME = (
    *("model", "temperature", "top_p", "parallel_tool_calls", "chat_template_kwargs"),
    *("stream", "tool_choice", "tools"),
)
_LAST = {"response.completed": "completed", "response.incomplete": "incomplete"}


def items_of(turns: Iterable[Body], choices: random.Random) -> list[Body]:
    """Return the first messages as items, with or without content parts."""
    return [
        {**turn, "content": [{"type": "input_text", "text": turn["content"]}]}
        if choices.random() < 0.5
        else turn
        for turn in turns
    ]


def item_body(items: list[Body], chat: Body) -> Body:
    """Convert a body of /v1/chat/completions; options without an equivalent are dropped."""
    body = {name: chat[name] for name in _SAME if name in chat}
    body |= {"input": items, "max_output_tokens": chat["max_tokens"]}
    if "tools" in body:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in body["tools"]]
    if isinstance(chosen := body.get("tool_choice"), dict):
        body["tool_choice"] = {"type": "function", "name": chosen["function"]["name"]}
    if (form := chat.get("response_format")) is not None:
        body["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    if "reasoning_effort" in chat:
        body["reasoning"] = {"effort": chat["reasoning_effort"]}
    return body


def as_chat(answer: Body) -> Body:
    """Convert an answer into one of /v1/chat/completions."""
    message: Body = {"role": "assistant", "content": ""}
    for item in answer["output"]:
        if item["type"] == "message":
            message["content"] += "".join([part["text"] for part in item["content"]])
        elif item["type"] == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
    end = "tool_calls" if "tool_calls" in message else "stop"
    if answer["status"] == "incomplete":
        end = "length"
    elif answer["status"] != "completed":
        end = str(answer["status"])
    return {"choices": [{"message": message, "finish_reason": end}]}


def next_items(items: list[Body], answer: Body, choices: random.Random) -> list[Body]:
    """Return the items of the next call: the answer's items, and results of its calls or another question."""
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    results: list[Body] = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": choices.choice(RESULTS)}
        for call in calls
    ]
    if not calls or choices.random() < 0.3:
        results.append({"role": "user", "content": choices.choice(["Go on.", "And then?", "Are you sure?"])})
    return [*items, *answer["output"], *results]


def answer_of_events(lines: Iterable[str]) -> tuple[Body, list[str]]:
    """Return the answer in the last event, and the problems of the events."""
    problems, events = list[str](), list[Body]()
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            events.append(json.loads(line.removeprefix("data: ")))
            if events[-1].get("type") != name:
                problems.append(f"an event {events[-1].get('type')} named {name}")
    if not events or events[-1]["type"] not in _LAST:
        return {"output": [], "status": "missing"}, [*problems, f"events without an end: {events[-1:]}"]
    answer: Body = events[-1]["response"]
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        problems.append("events are not numbered one by one")
    if answer["status"] != _LAST[events[-1]["type"]]:
        problems.append(f"{events[-1]['type']} with the status {answer['status']}")
    return answer, [*problems, *_differences(events, answer["output"])]


def _differences(events: Iterable[Body], output: list[Body]) -> list[str]:
    """Return the differences between the items of the events and of the whole answer."""
    problems, texts, added, done = list[str](), dict[int, str](), list[str](), list[Body]()
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            added.append(event["item"]["id"])
        elif kind == "response.output_item.done":
            done.append(event["item"])
        elif kind.endswith(".delta"):
            place = event["output_index"]
            texts[place] = texts.get(place, "") + event["delta"]
    if added != [item["id"] for item in output] or done != output:
        problems.append(f"other items than the whole answer has: {added}, {done}, {output}")
    written = [_text_of(item) for item in output]
    if [texts.get(place, "") for place in range(len(output))] != written:
        problems.append(f"other texts than the whole answer has: {texts}, {written}")
    return problems


def _text_of(item: Body) -> Any:
    if item["type"] == "function_call":
        return item["arguments"]
    return "".join([part["text"] for part in item["content"]])
