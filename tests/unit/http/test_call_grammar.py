"""Random texts that the grammar of function calls allows are read as calls."""

import json
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from http_svc.body.tools import Function
from http_svc.calls.answer import AnswerReader
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.elements import kinds_of
from http_svc.calls.grammar import Wanted, call_grammar
from specinfer.errors import InvalidInputError
from specinfer.text.chat.forms import BY_NAME, FORMS, CallForm
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import MAX_BYTES, MAX_GRAMMAR_BYTES, Constraint, ConstraintKind
from specinfer.text.constraints.digits import MAX_DIGITS
from specinfer.text.constraints.matcher import Matcher
from tests.support.models.byte_tokenizer import byte_tokenizer
from tests.unit.http.test_tool_calls import joined, written

_LONGEST = 2000
END = 256
SHADES = ["red", "a } ]", '", "arguments": {', "</tool_call>", "ü```"]
PARAMETERS = {
    "type": "object",
    "properties": {"shade": {"enum": SHADES}, "on": {"type": "boolean"}},
    "required": ["shade", "on"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = [Function(name="paint", parameters=PARAMETERS), Function(name="wait", parameters=NOTHING)]


@cache
def tokenizer() -> Tokenizer:
    return byte_tokenizer(["<end>"])


def tokens_of(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def text_of(tokens: list[int]) -> str:
    return str(tokenizer().decode(tokens))


@cache
def compiler() -> Compiler:
    return Compiler(tokenizer().to_str(), END + 1, [END])


@cache
def compiled(form: CallForm, must_call: bool, several: bool) -> Matcher:
    wanted = Wanted(FUNCTIONS, form, must_call=must_call, several=several)
    return compiler().compile(Constraint(ConstraintKind.GRAMMAR, call_grammar(wanted)))


def walk(matcher: Matcher, choices: random.Random, begun: str = "") -> str:
    """Return a random text that the matcher accepts, starting with `begun`; it ends with probability 1/2 where it
    may."""
    tokens = tokens_of(begun)
    assert matcher.try_read(tokens) == len(tokens)
    while len(tokens) < _LONGEST:
        allowed = np.flatnonzero(matcher.mask())
        assert len(allowed), "a text that can neither continue nor end"
        if END in allowed and (len(allowed) == 1 or choices.random() < 0.5):
            return text_of(tokens)
        token = int(choices.choice([token_id for token_id in allowed if token_id != END]))
        assert matcher.try_read([token]) == 1
        tokens.append(token)
    raise AssertionError(f"no end: {text_of(tokens)[-200:]!r}")


def calls_in(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the calls of an answer, checked against the offered functions, and its text."""
    kinds = {function.name: kinds_of(function.parameters) for function in FUNCTIONS}
    reader = AnswerReader("id", AnswerForm(list(kinds), kinds=kinds))
    calls = joined(reader.push(text) + reader.end())
    for call in calls:
        arguments = json.loads(call["arguments"])
        if call["name"] == "wait":
            assert arguments == {}
        else:
            assert call["name"] == "paint"
            assert arguments.keys() == {"shade", "on"}
            assert arguments["shade"] in SHADES
    return calls, reader.message["content"] or ""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=25)
@given(st.integers(0, 2**32), st.booleans())
def test_answers_that_must_call_are_read_as_calls(form: CallForm, seed: int, several: bool) -> None:
    text = walk(compiled(form, True, several).copy(), random.Random(seed))
    calls, words = calls_in(text)
    assert calls, text
    assert several or len(calls) == 1
    assert not words.strip(), text


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("words", ["", "I wait {here}:\n"])
@settings(max_examples=25)
@given(st.integers(0, 2**32), st.booleans())
def test_a_call_that_has_begun_is_read_as_one(form: CallForm, words: str, seed: int, several: bool) -> None:
    """Although plain text is allowed, the arguments of a call that has begun follow its function."""
    begun = f"{words}{form.mark}{form.begin}{form.before}paint{form.middle}"
    text = walk(compiled(form, False, several).copy(), random.Random(seed), begun)
    calls, content = calls_in(text)
    assert calls, text
    assert calls[0]["name"] == "paint"
    assert several or len(calls) == 1
    assert content == words.strip()


LONG = "1234567890" * 4


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize(
    "words", [f"n = {LONG}", f"[{LONG}]", f"x = {{'n': {LONG}}}", f"In [0, 1): {LONG}.5{LONG}"]
)
def test_words_next_to_functions_keep_their_digits(form: CallForm, words: str) -> None:
    matcher, tokens = compiled(form, False, True).copy(), tokens_of(f"So: {words}!")
    assert matcher.try_read(tokens) == len(tokens)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_numbers_in_arguments_have_few_digits(form: CallForm) -> None:
    number = {"type": "object", "properties": {"n": {"type": "object"}}, "additionalProperties": False}
    grammar = call_grammar(Wanted([Function(name="f", parameters=number)], form, must_call=True))
    matcher = compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar))
    arguments = f'{{"n": {{"a": {LONG}' if not form.parameters[0] else f'<parameter=n>\n{{"a": {LONG}'
    begun = f"{form.mark}{form.begin}{form.before}f{form.middle}{arguments}"
    assert matcher.try_read(tokens_of(begun)) == len(tokens_of(begun)) - len(LONG) + MAX_DIGITS


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("must_call", [True, False])
def test_many_functions_make_a_grammar_without_their_descriptions(form: CallForm, must_call: bool) -> None:
    words = "What it is for, and when to give it. " * 25
    kinds: list[dict[str, Any]] = [
        {"type": "string"},
        {"type": "integer"},
        {"enum": ["description", "title"]},
    ]
    functions = [
        Function(
            name=f"function.{number}",
            description=words,
            parameters={
                "type": "object",
                "properties": {
                    **{f"field_{place}": kinds[place % 3] | {"description": words} for place in range(7)},
                    "description": {"type": "string", "default": words, "title": words},
                },
                "required": ["description"],
            },
        )
        for number in range(128)
    ]
    assert sum(len(function.model_dump_json()) for function in functions) > 2**20
    grammar = call_grammar(Wanted(functions, form, must_call=must_call))
    assert words not in grammar
    matcher = compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar))
    arguments = json.dumps({"field_2": "title", "description": "d", "field_1": 3})
    tokens = tokens_of(written(form, [("function.127", arguments)]))
    assert matcher.try_read(tokens) == len(tokens)
    assert matcher.mask()[END]


def test_larger_grammars_than_callers_may_write_are_compiled() -> None:
    properties = {f"a_long_name_of_a_field_{place}": {"type": "integer"} for place in range(40)}
    functions = [Function(name=f"f{number}", parameters={"properties": properties}) for number in range(64)]
    grammar = call_grammar(Wanted(functions, BY_NAME["hermes"]))
    assert len(grammar) > MAX_BYTES
    compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar))
    with pytest.raises(InvalidInputError, match=r"constraint\.regex"):
        Constraint(ConstraintKind.REGEX, grammar)
    with pytest.raises(InvalidInputError, match=r"constraint\.grammar"):
        Constraint(ConstraintKind.GRAMMAR, "x" * (MAX_GRAMMAR_BYTES + 1))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("name", ["files.read", "mcp__" + "x" * 70, "server/tool", "suche_für"])
@pytest.mark.parametrize("must_call", [True, False])
def test_names_beyond_those_of_openai_are_called(form: CallForm, name: str, must_call: bool) -> None:
    functions = [Function(name="other"), Function(name=name)]
    grammar = call_grammar(Wanted(functions, form, must_call=must_call))
    matcher, text = (
        compiler().compile(Constraint(ConstraintKind.GRAMMAR, grammar)),
        written(form, [(name, "{}")]),
    )
    tokens = tokens_of(text)
    assert matcher.try_read(tokens) == len(tokens)
    assert matcher.mask()[END]
    reader = AnswerReader("id", AnswerForm(["other", name], calls=form))
    assert [(call["name"], call["arguments"]) for call in joined(reader.push(text))] == [(name, "{}")]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("must_call", [True, False])
def test_calls_as_models_write_them_are_accepted(form: CallForm, must_call: bool) -> None:
    arguments = [json.dumps({"shade": shade, "on": True}, ensure_ascii=False) for shade in SHADES]
    text = written(form, [*(("paint", argument) for argument in arguments), ("wait", "{}")])
    matcher = compiled(form, must_call, True).copy()
    tokens = tokens_of(text)
    taken = matcher.try_read(tokens)
    assert taken == len(tokens), text_of(tokens[taken:])
    assert matcher.mask()[END]
