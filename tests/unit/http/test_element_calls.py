"""Calls whose arguments are XML elements: values of every type, their grammar, and when JSON is used instead."""

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from http_svc.body.tools import Function
from http_svc.calls.answer import AnswerReader
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.elements import kinds_of, read_value
from http_svc.calls.grammar import Wanted, call_grammar
from specinfer.text.chat.forms import BY_NAME, HERMES
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.matcher import Matcher
from tests.unit.http.test_call_grammar import END, compiler, text_of, tokens_of, walk
from tests.unit.http.test_tool_calls import joined, pieces, written

FORM = BY_NAME["qwen3_coder"]
SCHEMA = {
    "type": "object",
    "$defs": {"point": {"type": "object", "properties": {"x": {"const": 1}}, "additionalProperties": False}},
    "properties": {
        "text": {"type": "string"},
        "shade": {"enum": ["red", "1", "true"]},
        "on": {"type": "boolean"},
        "place": {"$ref": "#/$defs/point"},
        "size": {"enum": [1, 2]},
        "either": {"type": ["string", "null"]},
    },
    "required": ["text", "on", "place"],
}
FUNCTION = Function(name="f", parameters=SCHEMA)


def read(text: str, cuts: list[int] | None = None, function: Function = FUNCTION) -> list[dict[str, Any]]:
    form = AnswerForm([function.name], kinds={function.name: kinds_of(function.parameters)})
    reader = AnswerReader("id", form)
    return joined(
        [delta for piece in pieces(text, cuts or []) for delta in reader.push(piece)] + reader.end()
    )


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("1", {"string"}, "1"),
        ("1", {"integer"}, 1),
        ("1", {"number"}, 1),
        ("1", set(), 1),
        ("1", {"string", "null"}, "1"),
        ("null", {"string", "null"}, None),
        ("True", {"boolean"}, True),
        ("None", {"string"}, "None"),
        ("NaN", {"number"}, "NaN"),
        ("12345678901234567890123", {"integer"}, 12345678901234567890123),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ('{"a": ', {"object"}, '{"a": '),
        ("\n ü\"\\\n", {"string"}, "\n ü\"\\\n"),
        ("", set(), ""),
        ("[" * 100_000, set(), "[" * 100_000),
    ],
)  # fmt: skip
def test_values_have_the_type_of_their_parameter(text: str, kinds: set[str], value: Any) -> None:
    assert json.loads(read_value(text, frozenset(kinds))) == value


@given(st.text(max_size=40), st.lists(st.integers(0, 400), max_size=6))
def test_a_string_argument_is_read_unchanged(text: str, cuts: list[int]) -> None:
    if "</parameter>" in text:
        return
    arguments = {"text": text, "on": True, "place": {"x": 1}}
    (call,) = read(written(FORM, [("f", json.dumps(arguments))]), cuts)
    assert json.loads(call["arguments"]) == arguments


def test_line_breaks_around_values_may_be_missing() -> None:
    call = "<tool_call><function=f><parameter=text>a</parameter><parameter=on>true</parameter></function></tool_call>"
    assert json.loads(read(call)[0]["arguments"]) == {"text": "a", "on": True}


def test_texts_are_streamed_as_they_come() -> None:
    reader = AnswerReader("id", AnswerForm(["f"], kinds={"f": kinds_of(SCHEMA)}))
    begin = f"{FORM.mark}{FORM.begin}{FORM.before}f{FORM.middle}"
    arguments = [
        delta["tool_calls"][0]["function"]["arguments"]
        for piece in (begin + "<parameter=text>\n", "a", "\nb", "\n</para", "meter>\n", "</function>")
        for delta in reader.push(piece)
    ]
    assert arguments == ['{"text": ', '"a', "\\nb", '"}']


@given(st.integers(1, 40))
def test_a_text_that_may_be_null_is_streamed_once_it_is_not(step: int) -> None:
    for value, either in (("null", None), ("nullify", "nullify"), ("None of\nthem", "None of\nthem")):
        text = written(
            FORM, [("f", json.dumps({"text": "a", "on": True, "place": {"x": 1}, "either": value}))]
        )
        (call,) = read(text, list(range(0, len(text), step)))
        assert json.loads(call["arguments"])["either"] == either


MARKS = ["</parameter>", "<parameter=a>", "</function>", "</tool_call>", "\n", " ", "a", '"', "</", "\t\n"]
ENDING = re.compile(r"(?:^|\n)</parameter>[ \t\r]*\n[ \t\r\n]*(?:<parameter=|</function>)")


@given(st.lists(st.sampled_from(MARKS), max_size=12).map("".join), st.integers(1, 40))
def test_grammar_and_reader_end_a_text_at_the_same_mark(value: str, step: int) -> None:
    """A value with marks is unchanged, unless they end it."""
    schema = {"properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}
    text = written(FORM, [("f", json.dumps({"text": value}))])
    if ENDING.search(f"{value}\n</parameter>\n") or value.endswith(("\n</parameter>", "\n</function>")):
        return
    matcher = compiled(json.dumps(schema), False).copy()
    tokens = tokens_of(text)
    assert matcher.try_read(tokens) == len(tokens)
    assert matcher.mask()[END]
    (call,) = read(text, list(range(0, len(text), step)), Function(name="f", parameters=schema))
    assert json.loads(call["arguments"]) == {"text": value}


def test_parameters_may_have_any_order_and_are_given_once() -> None:
    matcher = compiled(json.dumps(SCHEMA | {"additionalProperties": False}), False).copy()
    begun = f"{FORM.mark}{FORM.begin}{FORM.before}f{FORM.middle}<parameter=place>\n"
    tokens = tokens_of(begun + '{"x": 1}\n</parameter>\n<parameter=text>\na\n</parameter>\n<parameter=')
    assert matcher.try_read(tokens) == len(tokens)
    allowed = {text_of([int(token)]) for token in np.flatnonzero(matcher.mask())}
    assert allowed == {"s", "o", "e"}  # shade, size, on, either
    rest = tokens_of("on>\ntrue\n</parameter>\n</function>")
    assert matcher.try_read(rest) == len(rest)


@cache
def compiled(function: str, strict: bool, must_call: bool = True) -> Matcher:
    one = Function(name="f", parameters=json.loads(function), strict=strict)
    wanted = Wanted([one], FORM, must_call=must_call, several=False)
    return compiler().compile(Constraint(ConstraintKind.GRAMMAR, call_grammar(wanted)))


@pytest.mark.parametrize("must_call", [True, False])
@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_arguments_that_the_grammar_allows_follow_the_schema(must_call: bool, seed: int) -> None:
    """The string parameter is given in advance, as random tokens would never end it."""
    begun = (
        f"{FORM.mark}{FORM.begin}{FORM.before}f{FORM.middle}<parameter=text>\n<a> \n</parameter>\n<parameter="
    )
    text = walk(
        compiled(json.dumps({**SCHEMA, "properties": _ending()}), False, must_call).copy(),
        random.Random(seed),
        begun,
    )
    (call,) = read(text)
    arguments = json.loads(call["arguments"])
    jsonschema.validate(arguments, SCHEMA)
    assert arguments["text"] == "<a> "


def _ending() -> dict[str, Any]:
    properties: dict[str, Any] = dict(SCHEMA["properties"])  # type: ignore[call-overload]
    del properties["either"]
    return properties


INEXPRESSIBLE = {
    "any of": {"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]},
    "a name with a bracket": {"type": "object", "properties": {"a>b": {"type": "string"}}},
    "unknown and required": {"type": "object", "properties": {}, "required": ["a"]},
}


@pytest.mark.parametrize("schema", INEXPRESSIBLE.values(), ids=INEXPRESSIBLE)
def test_schemas_that_elements_cannot_express_use_json_between_the_same_marks(schema: dict[str, Any]) -> None:
    one = Function(name="f", parameters=schema)
    assert call_grammar(Wanted([one], FORM, must_call=True)) == call_grammar(
        Wanted([one], HERMES, must_call=True)
    )


@pytest.mark.parametrize(
    ("part", "elements"), [({"type": "string", "maxLength": 3}, False), ({"enum": ["a"]}, True)]
)
def test_a_strict_function_has_no_texts_without_bounds(part: dict[str, Any], elements: bool) -> None:
    one = Function(name="f", parameters={"type": "object", "properties": {"a": part}}, strict=True)
    as_json = call_grammar(Wanted([one], HERMES, must_call=True))
    assert (call_grammar(Wanted([one], FORM, must_call=True)) != as_json) == elements
