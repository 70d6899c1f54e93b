"""Answers that may be calls or a requested format: calls follow their function, other text the format."""

import json
import random
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from http_svc.body.bodies import ChatBody
from http_svc.body.names import text_form_name
from http_svc.calls.answer import AnswerReader
from http_svc.to_gateway import answer_form, chat_requests
from http_svc.tool_schemas import name_function
from specinfer.errors import InvalidInputError
from specinfer.text.chat.forms import BY_NAME, FORMS, CallForm, ChatForm
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.matcher import Matcher
from specinfer.text.constraints.schemas import lark_regex
from tests.unit.http.test_call_grammar import END, compiler, text_of, tokens_of, walk
from tests.unit.http.test_tool_calls import pieces, written

NOTHING: dict[str, Any] = {"name": "wait"}
PAINT = {
    "name": "paint",
    "parameters": {
        "type": "object",
        "properties": {"shade": {"enum": ["red", "a } ]"]}},
        "required": ["shade"],
        "additionalProperties": False,
    },
}
ANSWER = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}},
    "required": ["done"],
    "additionalProperties": False,
}
FORMATS: dict[str, dict[str, Any]] = {
    "any words": {},
    "any object": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER}}},
    "choice": {"structured_outputs": {"choice": ["yes", "no ["]}},
}
CHOICES = ["auto", "required", {"type": "function", "function": {"name": "wait"}}]
VALID = [{"shade": "red"}, {"shade": "a } ]"}]


def body_of(choice: Any, response_format: str, several: bool = True) -> ChatBody:
    tools = [{"type": "function", "function": function} for function in (PAINT, NOTHING)]
    turns = [{"role": "user", "content": "?"}]
    return ChatBody.model_validate(
        {
            "model": "m",
            "messages": turns,
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": several,
            **FORMATS[response_format],
        }
    )


@cache
def compiled(form: CallForm, choice: str, response_format: str, several: bool = True) -> Matcher:
    (request,) = chat_requests(
        body_of(json.loads(choice), response_format, several), ChatForm(form.name), "id"
    )
    return compiler().compile(Constraint(ConstraintKind.GRAMMAR, request.constraint.grammar))


def read(
    form: CallForm, choice: Any, response_format: str, text: str, cuts: list[int] | None = None
) -> AnswerReader:
    """Return a reader of the whole text; check that its calls follow their function."""
    reader = AnswerReader("id", answer_form(body_of(choice, response_format), ChatForm(form.name)))
    for piece in pieces(text, cuts or []):
        reader.push(piece)
    reader.end()
    for call in reader.message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        assert arguments in ([{}] if call["function"]["name"] == "wait" else VALID), text
    return reader


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("response_format", FORMATS)
@pytest.mark.parametrize("choice", CHOICES, ids=json.dumps)
@settings(max_examples=8)
@given(st.integers(0, 2**32), st.booleans())
def test_a_call_that_has_begun_follows_its_function(
    choice: Any, response_format: str, form: CallForm, seed: int, several: bool
) -> None:
    """A function without `parameters` has no arguments, for every form of calls and every response format."""
    begun = f"{form.mark}{form.begin}{form.before}wait{form.middle}"
    matcher = compiled(form, json.dumps(choice), response_format, several).copy()
    reader = read(form, choice, response_format, walk(matcher, random.Random(seed), begun))
    assert reader.called
    assert not (reader.message["content"] or "").strip()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("response_format", ["any words", "any object"])
@settings(max_examples=8)
@given(
    st.integers(0, 2**32),
    st.sampled_from(['{"name":"wait","arguments":', '{ "type": "function", "name": "wait", "parameters" : ']),
)
def test_plain_json_is_a_call_in_every_form_if_any_object_is_allowed(
    response_format: str, form: CallForm, seed: int, begun: str
) -> None:
    text = walk(compiled(form, '"auto"', response_format, several=False).copy(), random.Random(seed), begun)
    assert read(form, "auto", response_format, text).called


@pytest.mark.parametrize(
    ("form", "other"),
    [("hermes", "qwen3_coder"), ("hermes", "mistral_args"), ("mistral", "deepseek_flat"), ("llama", "qwen3_coder")],
)  # fmt: skip
def test_a_call_in_the_form_of_another_family_is_text(form: str, other: str) -> None:
    """The grammar does not know it, so its arguments need not follow the function."""
    written_otherwise = BY_NAME[other]
    text = written(written_otherwise, [("wait", '{"path": "/"}')]).removeprefix(BY_NAME[form].mark)
    reader = read(BY_NAME[form], "auto", "any words", text)
    assert not reader.called
    assert reader.message["content"] == text


NAMES = st.sampled_from(["name", "type", "arguments", "parameters", "a", "wait", "function", 'ü"\\'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | NAMES | st.just({}) | st.just(VALID[0]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)
OBJECTS = st.lists(st.tuples(NAMES, VALUES), max_size=4, unique_by=lambda pair: pair[0]).map(
    dict
) | st.sampled_from(
    [
        {"name": name, key: VALID[0], "b": 1}
        for name in ("wait", "paint")
        for key in ("arguments", "parameters")
    ]
    + [{"name": name, "arguments": value} for name in ("wait", "paint", "other") for value in ({}, *VALID, 5)]
)


def begins_as_call(call: dict[str, Any]) -> bool:
    keys = list(call)
    if keys[:2] == ["type", "name"] and call["type"] == "function":
        return True
    return (
        keys[:1] == ["name"]
        and call["name"] in ("wait", "paint")
        and keys[1:2] in (["arguments"], ["parameters"])
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=150)
@given(OBJECTS, st.sampled_from([None, 2]), st.lists(st.integers(0, 99), max_size=4))
def test_any_object_is_the_answer_unless_it_begins_as_a_call(
    form: CallForm, call: dict[str, Any], indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps(call, ensure_ascii=False, indent=indent)
    matcher, tokens = compiled(form, '"auto"', "any object").copy(), tokens_of(text)
    taken = matcher.try_read(tokens)
    whole = taken == len(tokens) and bool(matcher.mask()[END])
    if not begins_as_call(call):
        assert whole, text_of(tokens[taken:])
    if whole:
        reader = read(form, "auto", "any object", text, cuts)
        assert reader.called == begins_as_call(call)
        assert reader.message["content"] == (None if reader.called else text)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("response_format", "text"),
    [
        ("schema", '{"done": true}'),
        *[("choice", text) for text in FORMATS["choice"]["structured_outputs"]["choice"]],
        ("any object", '{"calls": [{"name": "paint", "arguments": {"a": 1}}]}'),
    ],
)  # fmt: skip
@given(st.lists(st.integers(0, 99), max_size=4))
def test_a_text_of_the_form_is_the_answer(
    form: CallForm, response_format: str, text: str, cuts: list[int]
) -> None:
    matcher, tokens = compiled(form, '"auto"', response_format).copy(), tokens_of(text)
    assert matcher.try_read(tokens) == len(tokens)
    assert matcher.mask()[END]
    reader = read(form, "auto", response_format, text, cuts)
    assert not reader.called
    assert reader.message["content"] == text


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("response_format", ["any object", "schema", "choice"])
def test_calls_in_the_form_are_taken_and_read(form: CallForm, response_format: str) -> None:
    text = written(form, [("wait", "{}"), ("paint", json.dumps(VALID[0]))])
    matcher, tokens = compiled(form, '"auto"', response_format).copy(), tokens_of(text)
    taken = matcher.try_read(tokens)
    assert taken == len(tokens), text_of(tokens[taken:])
    assert len(read(form, "auto", response_format, text).message["tool_calls"]) == 2


def body_with(**fields: Any) -> ChatBody:
    return ChatBody.model_validate(body_of("auto", "any words").model_dump(exclude_none=True) | fields)


REGEX_PARTS = [
    "a",
    "/",
    r"\/",
    r"\\",
    "[/]",
    r"[^/\n]",
    r"\d",
    '"',
    "\n",
    "#",
    r"(a|\/){1,2}",
    r"\x2F",
    "x*",
    "\\\n",
    ".",
]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(REGEX_PARTS), min_size=1, max_size=6).map("".join), st.integers(0, 2**32))
def test_a_regular_expression_is_followed_as_without_functions(regex: str, seed: int) -> None:
    alone = compiler().compile(Constraint(ConstraintKind.REGEX, regex))
    written = compiler().compile(Constraint(ConstraintKind.GRAMMAR, f"start: {lark_regex(regex)}"))
    choices = random.Random(seed)
    for _ in range(12):
        mask = alone.mask()
        assert (mask == written.mask()).all()
        allowed = [int(token) for token in np.flatnonzero(mask) if token != END]
        if not allowed:
            break
        token = choices.choice(allowed)
        alone.read([token])
        written.read([token])
    grammar = chat_requests(body_with(structured_outputs={"regex": regex}), ChatForm(), "id")[
        0
    ].constraint.grammar
    compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar))


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"structured_outputs": {"regex": "a(b"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": '{}\nx: "a"'}}, "structured_outputs.json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}},
            "",
        ),
    ],
)
def test_errors_of_a_form_next_to_functions_name_it_and_quote_no_grammar(
    form: dict[str, Any], field: str
) -> None:
    body = body_with(**form)
    grammar = chat_requests(body, ChatForm(), "id")[0].constraint.grammar
    with pytest.raises(InvalidInputError) as caught:
        compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar))
    message = f"tools = {str(caught.value).partition(' = ')[2]}"
    shown = name_function(message, body.callable, text_form_name(body))
    assert shown.startswith(f"{field or 'response_format.json_schema.schema'}: ")
    assert "args_0" not in shown


def test_errors_of_other_lines_of_a_grammar_quote_nothing() -> None:
    message = str(
        Constraint(ConstraintKind.GRAMMAR, "args_0: %json {}\n" * 20).error("at line 9, column 1: bad")
    )
    shown = name_function(f"tools = {message.partition(' = ')[2]}", [], "structured_outputs.regex")
    assert shown == "tools: bad"


ODD: list[Any] = [5, 0.5, True, None, "x", [], [1], [[1]], [{}], {}, {"a": 1}, {"type": 5}, {"$ref": "#"}]
KEYWORDS = [
    *(
        "type",
        "properties",
        "required",
        "additionalProperties",
        "$defs",
        "$ref",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
    ),
    *("const", "items", "minItems", "maxItems", "patternProperties", "pattern", "minimum", "description"),
]


@settings(max_examples=150)
@given(
    st.recursive(
        st.dictionaries(st.sampled_from(KEYWORDS), st.sampled_from(ODD), max_size=3),
        lambda part: st.one_of(
            st.dictionaries(st.sampled_from(KEYWORDS), part, max_size=2),
            st.builds(lambda inner: {"type": "object", "properties": {"a": inner, "ab": {}}}, part),
        ),
        max_leaves=3,
    ),
    st.sampled_from(FORMS),
    st.booleans(),
)
def test_odd_schemas_are_followed_or_refused(schema: dict[str, Any], form: CallForm, strict: bool) -> None:
    """No schema is an internal error."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
    body, chat_form = body_with(tools=[tool]), ChatForm(calls=form.name)
    answer_form(body, chat_form)
    grammar = chat_requests(body, chat_form, "id")[0].constraint.grammar
    with suppress(InvalidInputError):
        compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar))
    with suppress(InvalidInputError):
        compiler().compile(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
