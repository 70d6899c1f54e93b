"""Check answers: every choice ends, calls are complete, texts follow their schema. Pure."""

import json
from collections.abc import Iterable
from typing import Any

import jsonschema

from tests.soak.conversations import Body, parameters_of, schema_of

ENDS = {"stop", "length", "tool_calls"}


def joined(events: Iterable[str]) -> tuple[Body, list[str]]:
    """Return the whole answer of a stream's lines, and the problems of the stream."""
    choices: dict[int, Body] = {}
    problems, ended = list[str](), False
    for line in events:
        if not line.startswith("data: "):
            continue
        if ended:
            problems.append("an event behind [DONE]")
        if line == "data: [DONE]":
            ended = True
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            problems.append(f"an error in a stream: {event['error']}")
        for part in event.get("choices", ()):
            choice = choices.setdefault(part["index"], {"message": {"role": "assistant", "content": ""}})
            if "finish_reason" in choice:
                problems.append("a part behind the end of its choice")
            _add(choice["message"], part["delta"])
            if part.get("finish_reason"):
                choice["finish_reason"] = part["finish_reason"]
    if not ended:
        problems.append("a stream without [DONE]")
    return {"choices": [choices[index] for index in sorted(choices)]}, problems


def _add(message: Body, delta: Body) -> None:
    for name in ("content", "reasoning_content"):
        if delta.get(name):
            message[name] = (message.get(name) or "") + delta[name]
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            calls.append({"id": call["id"], "type": "function", "function": {"name": "", "arguments": ""}})
        for name, text in call["function"].items():
            calls[call["index"]]["function"][name] += text


def problems_of(body: Body, answer: Body) -> list[str]:
    problems = list[str]()
    choices = answer.get("choices", [])
    if len(choices) != body.get("n", 1):
        problems.append(f"{len(choices)} choices instead of {body.get('n', 1)}")
    for choice in choices:
        problems += _of_choice(body, choice)
    return problems


def _of_choice(body: Body, choice: Body) -> list[str]:
    end, message = choice.get("finish_reason"), choice["message"]
    calls = message.get("tool_calls") or []
    if end not in ENDS:
        return [f"an answer without an end: finish_reason {end!r}"]
    if end == "length":
        return []
    if end == "tool_calls" and not calls:
        return ["finish_reason tool_calls without calls"]
    if body.get("tool_choice", "auto") not in ("auto", "none") and not calls:
        return ["no call, though one was required"]
    if calls and body.get("tool_choice") == "none":
        return ["a call, though there must be none"]
    problems = [problem for call in calls if (problem := _of_call(body, call))]
    schema = schema_of(body)
    if schema is not None and not calls and "stop" not in body:
        problems += _violations("the answer", message["content"], schema)
    return problems


def _of_call(body: Body, call: Body) -> str:
    name = call["function"]["name"]
    try:
        schema = parameters_of(body, name)
    except ValueError:
        return f"a call of {name!r}, which was not offered"
    return "".join(_violations(f"arguments of {name}", call["function"]["arguments"], schema))


def _violations(what: str, text: Any, schema: Any) -> list[str]:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, TypeError) as error:
        return [f"{what} are no JSON: {error}: {text!r}"]
    except jsonschema.ValidationError as error:
        return [f"{what} do not follow the schema: {error.message}"]
    return []
