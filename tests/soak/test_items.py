"""Conversations as items: accepted bodies, correct events, and events with faults."""

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest

from http_svc.calls.answer import AnswerReader
from http_svc.calls.answer_form import AnswerForm
from http_svc.items.answer import ItemWriter
from http_svc.items.body import ResponsesBody, conversation_of
from tests.soak.checks import problems_of
from tests.soak.conversations import Body, openings
from tests.soak.doors import ITEMS, chosen_options
from tests.soak.items import answer_of_events, as_chat

TEXT = 'Well: {"name": "list_files", "arguments": {}}'
OFFERED = {"tools": [{"type": "function", "function": {"name": "list_files"}}]}


def events_of(complete: bool = True) -> list[Body]:
    """Return the events of an answer with text and a call, in the service's format."""
    reader, writer = AnswerReader("id", AnswerForm(["list_files"])), ItemWriter("id")
    events: list[Body] = [{"type": "response.created", "response": {}}]
    for place in range(0, len(TEXT), 7):
        events += writer.push("", reader.push(TEXT[place : place + 7]))
    events += writer.push("", reader.end()) + writer.end(complete)
    status = "completed" if complete else "incomplete"
    answer = {"output": writer.items, "status": status}
    events.append({"type": f"response.{status}", "response": answer})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def lines_of(events: list[Body]) -> list[str]:
    return [
        line for event in events for line in (f"event: {event['type']}", f"data: {json.dumps(event)}", "")
    ]


@pytest.mark.parametrize("complete", [True, False])
def test_events_tell_the_whole_answer(complete: bool) -> None:
    answer, problems = answer_of_events(lines_of(events_of(complete)))
    assert not problems
    chat = as_chat(answer)
    assert problems_of(OFFERED, chat) == []
    (choice,) = chat["choices"]
    assert choice["finish_reason"] == ("tool_calls" if complete else "length")
    assert choice["message"]["content"] == "Well:"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["list_files"]


def is_delta(event: Body) -> bool:
    return bool(event["type"].endswith("arguments.delta"))


@dataclass
class Broken:
    """A stream with a fault."""

    words: str
    break_it: Any


BROKEN = {
    "no end": Broken("without an end", lambda events: events[:-1]),
    "a number twice": Broken("numbered", lambda events: [*events[:2], *events[1:]]),
    "a missing delta": Broken("other texts", lambda events: [one for one in events if not is_delta(one)]),
    "a missing item": Broken(
        "other items", lambda events: [one for one in events if "output_item.done" not in one["type"]]
    ),
}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
def test_broken_events_are_noticed(fault: Broken) -> None:
    _, problems = answer_of_events(lines_of(fault.break_it(events_of())))
    assert any(fault.words in problem for problem in problems)


def test_a_name_that_is_not_the_type_is_noticed() -> None:
    lines = [line.replace("event: response.created", "event: x") for line in lines_of(events_of())]
    assert "named x" in answer_of_events(lines)[1][0]


def test_bodies_are_taken() -> None:
    kinds = set[str]()
    for seed in range(300):
        choices = random.Random(seed)
        items = ITEMS.begin(openings(choices), choices)
        for _ in range(3):
            body = ITEMS.body(items, chosen_options(ITEMS, "m", choices))
            conversation_of(ResponsesBody.model_validate(json.loads(json.dumps(body))))
            kinds |= body.keys()
            items = ITEMS.go_on(items, answer_of_events(lines_of(events_of(False)))[0], choices)
    assert {"tools", "tool_choice", "text", "reasoning", "chat_template_kwargs", "stream"} <= kinds
