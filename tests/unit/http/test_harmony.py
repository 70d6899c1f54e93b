"""gpt-oss's channels: analysis, text and calls, read and constrained."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_svc.body.tools import Function
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.grammar import Wanted, call_grammar
from http_svc.calls.harmony import HarmonyReader
from specinfer.text.chat.forms import HARMONY, HARMONY_MARKS, JSON, ends_in_reasoning, taught_form
from specinfer.text.chat.template import ChatTemplate
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from tests.support.models.byte_tokenizer import byte_tokenizer

END = "<|return|>"
THOUGHT = "<|channel|>analysis<|message|>I <look>.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant"
CALLS = [
    ' to=functions.paint<|channel|>commentary json<|message|>{"a": 1}',
    '<|channel|>commentary to=functions.paint <|constrain|>json<|message|>{"a": 1}',
]
FINAL = "<|channel|>final<|message|>Hello <|"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = AnswerForm(("paint",), ("<|channel|>analysis<|message|>", "<|end|>"), harmony=True)


@pytest.mark.parametrize("shown", [True, False], ids=["end is text", "end is left out"])
@pytest.mark.parametrize("last", [*CALLS, FINAL, "Hello <|"])
@given(cuts=st.lists(st.integers(1, 9), max_size=60))
def test_channels_are_read_apart_however_they_are_cut(last: str, shown: bool, cuts: list[int]) -> None:
    text = last if last[0] == "H" else THOUGHT + PREAMBLE + last
    text = text if shown else text.replace("<|end|>", "")
    reader, message = HarmonyReader("id", FORM), dict[str, Any]()
    for cut in [*cuts, len(text)]:
        piece, text = text[:cut], text[cut:]
        reader.push(piece, [0])
    reader.end()
    message = reader.message
    begun = last[0] != "H"
    assert message.get("reasoning_content") == ("I <look>." if begun else None)
    if last in CALLS:
        (call,) = message["tool_calls"]
        assert (call["function"], reader.called) == ({"name": "paint", "arguments": '{"a": 1}'}, True)
        assert message["content"] == "Wait."
    else:
        assert (message["content"], reader.called) == ("Wait.\n\n" * begun + "Hello <|", False)
    assert reader.reasoning_tokens <= len(cuts) + 1


def test_an_answer_may_begin_within_the_analysis() -> None:
    assert ends_in_reasoning("<|start|>assistant<|channel|>analysis<|message|>", FORM.reasoning)
    reader = HarmonyReader("id", FORM)
    reader.begin_in_reasoning()
    reader.push("Hm.<|end|><|start|>assistant" + FINAL[:-3])
    reader.end()
    assert (reader.message["reasoning_content"], reader.message["content"]) == ("Hm.", "Hello")


@cache
def compiler() -> tuple[Any, Compiler, dict[str, int]]:
    tokenizer = byte_tokenizer([*sorted(HARMONY_MARKS), END])
    ids = {mark: tokenizer.token_to_id(mark) for mark in [*HARMONY_MARKS, END]}
    return tokenizer, Compiler(tokenizer.to_str(), tokenizer.get_vocab_size(), [ids[END]]), ids


def accepted(text: str, reasoning: bool = False, **wanted: Any) -> bool:
    """Return whether a whole answer is allowed."""
    tokenizer, compiles, ids = compiler()
    marks = {mark: ids[mark] for mark in HARMONY_MARKS}
    functions = [Function(name="paint", parameters=SCHEMA), Function(name="wait")]
    grammar = call_grammar(
        Wanted(functions, JSON, harmony=True, reasoning=FORM.reasoning, mark_tokens=marks, **wanted)
    )
    constraint = Constraint(ConstraintKind.GRAMMAR, grammar)
    matcher = compiles.compile(constraint.in_reasoning() if reasoning else constraint)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_read(tokens) == len(tokens) and bool(matcher.mask()[ids[END]])


@pytest.mark.parametrize("begin", ["", THOUGHT, PREAMBLE, THOUGHT + PREAMBLE])
def test_the_grammar_allows_what_was_asked(begin: str) -> None:
    words, bad = begin + "<|channel|>final<|message|>Hello", begin + CALLS[1].replace("1", '"x"')
    for call in CALLS:
        for wanted in ({}, {"must_call": True}, {"other": '%json {"type": "object"}'}, {"any_object": True}):
            assert accepted(begin + call, **wanted), (call, wanted)
            assert not accepted(bad, **wanted)
    assert accepted(words)
    assert not accepted(words, must_call=True)
    assert not accepted(words, any_object=True)
    assert accepted("more<|end|><|start|>assistant" + begin + CALLS[1], reasoning=True)
    assert accepted("Hello") == accepted(" to be") == (not accepted(" to=functions.rub"))


def test_a_template_of_channels_is_recognised_and_gets_thoughts_and_single_calls() -> None:
    text = (
        "{% for m in messages %}"
        "{% if m.thinking and m.content and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"
        "<|start|>{{ m.role }}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{{ m.content }}"
        "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}{% if tools %}{% endif %}"
    )
    assert taught_form(text) == HARMONY
    template = ChatTemplate(text, {})
    assert template.form().reasoning == FORM.reasoning
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": {}}} for name in "ab"]
    turn = {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": calls}
    shown = template.render([turn], ())
    assert shown.count("Hm.") == 2
    assert "<|end|>a" in shown
    assert "<|end|>b" in shown
    assert "So." in template.render([{**turn, "content": "So."}], ())
