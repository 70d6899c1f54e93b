"""Calls are read alike however their text is cut into pieces."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from http_svc.body.tools import CalledFunction, Function
from http_svc.tool_schemas import followed
from http_svc.tools import CallReader, message_of

CALL = '{"name": "f", "arguments": {"a": ", \\"arguments\\": }", "b": {"c": [{}, "]"]}}}'
ARGUMENTS = '{"a": ", \\"arguments\\": }", "b": {"c": [{}, "]"]}}'
TWO = f'{CALL}\n{{"name": "g", "arguments": {{}}}}'


def joined(deltas: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a stream as a client puts them together."""
    calls: list[dict[str, Any]] = []
    for call in [call for delta in deltas for call in delta.get("tool_calls", ())]:
        if call["index"] == len(calls):
            calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
        assert call["index"] == len(calls) - 1
        calls[-1]["arguments"] += call["function"]["arguments"]
    return calls


@given(st.lists(st.integers(0, len(TWO)), max_size=8))
def test_pieces_of_calls(cuts: list[int]) -> None:
    reader, ends = CallReader("id"), [0, *sorted(cuts), len(TWO)]
    assert joined([reader.push(TWO[start:end]) for start, end in pairwise(ends)]) == [
        {"id": "id", "name": "f", "arguments": ARGUMENTS},
        {"id": "id_1", "name": "g", "arguments": "{}"},
    ]
    assert reader.complete
    whole, complete = message_of(TWO, "id")
    assert complete
    assert [call["function"]["name"] for call in whole["tool_calls"]] == ["f", "g"]
    assert whole["content"] is None


@pytest.mark.parametrize("end", range(1, len(TWO)))
def test_calls_that_were_cut_off_keep_what_there_is(end: int) -> None:
    message, complete = message_of(TWO[:end], "id")
    head = len(CALL) - len(ARGUMENTS) - 1
    assert complete == (end in (len(CALL), len(CALL) + 1))
    if end < head:
        assert message["content"] == TWO[:end]
    else:
        assert message["tool_calls"][0]["function"]["arguments"] == TWO[head : min(end, len(CALL) - 1)]


def test_words_are_words() -> None:
    message, complete = message_of("It rains {here}", "id")
    assert (complete, message["content"]) == (False, "It rains {here}")
    assert message_of("", "id")[0]["content"] == ""


def followed_parameters(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return followed(Function(name="f", parameters=parameters, **more))


def test_patterns_that_cannot_be_followed_are_left_out_unless_the_function_is_strict() -> None:
    beyond = {"properties": {"a": {"type": "string", "pattern": "(?=x)y"}, "pattern": {"pattern": "a+"}}}
    free = followed_parameters(beyond)
    assert free["properties"] == {"a": {"type": "string"}, "pattern": {"pattern": "a+"}}
    assert free["x-guidance"]["lenient"]
    strict = followed_parameters(beyond, strict=True)
    assert strict["properties"] == beyond["properties"]
    assert "lenient" not in strict["x-guidance"]


HISTORY = {
    **{key: {} for key in ["", " ", "null", None, "{", "{}"]},
    '{"a": {"b": 2}': {"a": {"b": 2}},
    '{"city": "Ro': {"city": "Ro"},
    '{"a": 1, "b": [1, {"c': {"a": 1, "b": [1, {}]},
}


@pytest.mark.parametrize("arguments", HISTORY)
def test_arguments_of_earlier_calls_are_read_as_far_as_they_go(arguments: str | None) -> None:
    called = CalledFunction.model_validate({"name": "f", "arguments": arguments})
    assert json.loads(called.arguments) == HISTORY[arguments]


@pytest.mark.parametrize("arguments", ["abc", "[1", '{"a":}', "5", '{"a": 1}'])
def test_other_arguments_stay_as_they_are(arguments: str) -> None:
    assert CalledFunction.model_validate({"name": "f", "arguments": arguments}).arguments == arguments


def test_arguments_that_are_no_text_are_refused() -> None:
    for arguments in ("\ud800", '{"a": "\ud800', 5, [1]):
        with pytest.raises(ValidationError):
            CalledFunction.model_validate({"name": "f", "arguments": arguments})
