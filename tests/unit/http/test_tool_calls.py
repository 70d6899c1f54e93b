"""Function calls in answers are read the same for any division of the text into pieces."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from http_svc.body.tools import CalledFunction, Function
from http_svc.calls.answer import AnswerReader
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.heads import HEAD
from http_svc.calls.reader import MAX_CALLS, MAX_EQUAL
from http_svc.tool_schemas import followed
from specinfer.text.chat.forms import BY_NAME, FORMS, CallForm

ARGUMENTS = '{"a": ", \\"arguments\\": }", "b": {"c": [{}, "]"]}}'
CALLS = [("f", ARGUMENTS), ("g", "{}")]
CALL = f'{{"name": "f", "arguments": {ARGUMENTS}}}'


def arguments_in(form: CallForm, arguments: str) -> str:
    """Return JSON arguments as a form writes them."""
    begin, middle, after = form.parameters
    if not begin:
        return arguments
    values = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in json.loads(arguments).items()
    }
    return "".join([f"{begin}{name}{middle}{value}{after}" for name, value in values.items()])


def written(form: CallForm, calls: Sequence[tuple[str, str]] = CALLS) -> str:
    texts = [
        f"{form.before}{name}{form.middle}{arguments_in(form, call)}{form.after}" for name, call in calls
    ]
    return f"{form.mark}{form.begin}{form.between.join(texts)}{form.end}"


ANSWERS = {
    **{form.name: written(form) for form in FORMS},
    "words before": "Well {see}:\n\n" + written(BY_NAME["hermes"]),
    "fences": f'Well {{see}}:\n```json\n{CALL}\n```\n```json\n{{"name":"g", "parameters" :{{}} }}\n```\n',
    "special marks left out": f'\n [{CALL}, {{"name": "g", "arguments": {{}}, "id": "123456789"}}]',
    "with a type": f'{CALL}\n{{"type": "function", "name": "g", "parameters": {{}}}}',
}


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    ends = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


ANY_FUNCTION = AnswerForm(functions=())


def message_of(text: str, call_id: str, form: AnswerForm = ANY_FUNCTION) -> tuple[dict[str, Any], bool]:
    """Return the message of a whole answer, and whether it has complete calls."""
    reader = AnswerReader(call_id, form)
    reader.push(text)
    reader.end()
    return reader.message, reader.called


def joined(deltas: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of a stream as a client assembles them."""
    calls: list[dict[str, Any]] = []
    for call in [call for delta in deltas for call in delta.get("tool_calls", ())]:
        if call["index"] == len(calls):
            calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
        assert call["index"] == len(calls) - 1
        calls[-1]["arguments"] += call["function"]["arguments"]
    return calls


@pytest.mark.parametrize("kind", ANSWERS)
@given(cuts=st.lists(st.integers(0, 999), max_size=8))
def test_calls_are_read_in_every_form_for_any_division(kind: str, cuts: list[int]) -> None:
    reader = AnswerReader("id", AnswerForm(("f", "g")))
    deltas = [delta for piece in pieces(ANSWERS[kind], cuts) for delta in reader.push(piece)] + reader.end()
    calls = joined(deltas)
    assert [(call["name"], call["arguments"]) for call in calls] == CALLS
    assert len({call["id"] for call in calls}) == 2
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", call["id"]) for call in calls)
    assert reader.called
    assert reader.message["content"] == ("Well {see}:" if ANSWERS[kind].startswith("Well") else None)
    assert "".join([delta.get("content", "") for delta in deltas]) == (reader.message["content"] or "")
    assert not reader.ended


@given(st.lists(st.integers(0, 999), max_size=8), st.text('{}[]"`nametol_c:, \n<>/|', max_size=60))
def test_plain_text_is_read_for_any_division(cuts: list[int], text: str) -> None:
    reader = AnswerReader("id", AnswerForm(("f",)))
    deltas = [delta for piece in pieces(text, cuts) for delta in reader.push(piece)] + reader.end()
    assert "".join([delta["content"] for delta in deltas]) == text
    assert not reader.called


def test_a_call_of_a_function_that_was_not_offered_is_text() -> None:
    other = '{"name": "h", "arguments": {}}'
    reader = AnswerReader("id", AnswerForm(("f", "g")))
    reader.push(f"So: {other} {CALL}")
    reader.end()
    assert reader.message["content"] == f"So: {other}"
    assert [call["function"]["name"] for call in reader.message["tool_calls"]] == ["f"]


@pytest.mark.parametrize("end", range(1, len(CALL)))
def test_incomplete_calls_keep_their_partial_arguments(end: int) -> None:
    message, complete = message_of(CALL[:end], "id")
    assert not complete
    head = len(CALL) - len(ARGUMENTS) - 1
    if end <= head:
        assert message["content"] == CALL[:end]
    else:
        assert message["tool_calls"][0]["function"]["arguments"] == CALL[head : min(end, len(CALL) - 1)]


@given(
    st.lists(st.tuples(st.sampled_from("fg"), st.sampled_from(["{}", ARGUMENTS])), max_size=MAX_CALLS),
    st.sampled_from(FORMS),
    st.integers(1, 40),
)
def test_only_calls_that_repeat_many_before_them_are_left_out(
    calls: list[tuple[str, str]], form: CallForm, step: int
) -> None:
    text = written(form, calls) if calls else ""
    reader = AnswerReader("id", AnswerForm(("f", "g")))
    deltas = [
        delta for place in range(0, len(text), step) for delta in reader.push(text[place : place + step])
    ]
    read = [(call["name"], call["arguments"]) for call in joined(deltas + reader.end())]
    assert read == [one for _, equal in groupby(calls) for one in list(equal)[:MAX_EQUAL]]
    assert not reader.ended


def test_an_incomplete_call_that_repeats_many_before_it_is_left_out() -> None:
    repeated = "\n".join([CALL] * MAX_EQUAL)
    message, complete = message_of(f"{repeated}\n{CALL[:-3]}", "id")
    assert complete
    assert len(message["tool_calls"]) == MAX_EQUAL


def test_repetitions_end_with_the_bound_of_calls() -> None:
    reader = AnswerReader("id", AnswerForm(("f",)))
    reader.push("\n".join([CALL] * (MAX_CALLS + 1)))
    assert reader.ended
    assert len(reader.message["tool_calls"]) == MAX_EQUAL


@pytest.mark.parametrize("sign", ["[", ",", ";", " ", "\n", "{", "```", '{"name": "f"', "<tool_call>"])
def test_signs_that_may_begin_a_call_are_searched_once(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search begins where the last one ended, up to the few signs of an incomplete head."""
    searched = list[int]()

    class Counted:
        def search(self, text: str, place: int) -> object:
            searched.append(len(text) - place)
            return HEAD.search(text, place)

    monkeypatch.setattr("http_svc.calls.reader.HEAD", Counted())
    reader = AnswerReader("id", AnswerForm(("f",)))
    for _ in range(300):
        reader.push(sign)
    assert max(searched) <= 2 * len(sign) + 20


def test_an_answer_has_no_more_calls_than_the_bound() -> None:
    many = [("f", f'{{"a": {number}}}') for number in range(MAX_CALLS + 1)]
    reader = AnswerReader("id", AnswerForm(("f",)))
    reader.push(written(BY_NAME["json"], many))
    assert reader.ended
    assert len(reader.message["tool_calls"]) == MAX_CALLS


THOUGHTS = AnswerForm(("f",), ("<think>", "</think>"))


@given(st.lists(st.integers(0, 999), max_size=8), st.booleans(), st.booleans())
def test_thoughts_are_separated_from_the_answer(cuts: list[int], begun: bool, calls: bool) -> None:
    text = "\n<think>" * (not begun) + f"\nA < b?\n\nYes: {CALL}\n</think>\n\n" + (CALL if calls else "Hi\n")
    reader = AnswerReader("id", THOUGHTS)
    if begun:
        reader.begin_in_reasoning()
    deltas = [delta for piece in pieces(text, cuts) for delta in reader.push(piece)] + reader.end()
    assert "".join([delta.get("reasoning_content", "") for delta in deltas]) == f"A < b?\n\nYes: {CALL}"
    assert reader.message["reasoning_content"] == f"A < b?\n\nYes: {CALL}"
    assert reader.message["content"] == (None if calls else "Hi\n")
    assert reader.called == calls


@pytest.mark.parametrize(("end", "counted"), [(7, 3), (None, 4)])
def test_tokens_of_thoughts_are_counted(end: int | None, counted: int) -> None:
    """Exactly if the mark is one token, else by the share of the text."""
    reader = AnswerReader("id", replace(THOUGHTS, end_token=end))
    reader.begin_in_reasoning()
    reader.push("ab", [5, 5])
    reader.push("</think>12345678", [7, 9, 9, 9])
    reader.push("more", [9])
    assert (reader.message["reasoning_content"], reader.reasoning_tokens) == ("ab", counted)
    other = AnswerReader("id", THOUGHTS)
    other.push("<thi", [5])
    other.push("rd", [5])
    assert other.reasoning_tokens == 0


def test_thoughts_without_an_end_and_answers_without_thoughts() -> None:
    for text, thought, words in (
        ("<think>a </thi", "a </thi", ""),
        ("<thin", None, "<thin"),
        ("b", None, "b"),
    ):
        message, _ = message_of(text, "id", THOUGHTS)
        assert (message.get("reasoning_content"), message["content"]) == (thought, words)
    assert message_of("", "id")[0]["content"] == ""


def followed_parameters(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return followed(Function(name="f", parameters=parameters, **more))


def test_unsupported_patterns_are_left_out_unless_the_function_is_strict() -> None:
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
def test_incomplete_arguments_of_earlier_calls_are_completed(arguments: str | None) -> None:
    called = CalledFunction.model_validate({"name": "f", "arguments": arguments})
    assert json.loads(called.arguments) == HISTORY[arguments]


@pytest.mark.parametrize("arguments", ["abc", "[1", '{"a":}', "5", '{"a": 1}'])
def test_other_arguments_stay_unchanged(arguments: str) -> None:
    assert CalledFunction.model_validate({"name": "f", "arguments": arguments}).arguments == arguments


def test_arguments_that_are_not_valid_text_are_refused() -> None:
    for arguments in ("\ud800", '{"a": "\ud800', 5, [1]):
        with pytest.raises(ValidationError):
            CalledFunction.model_validate({"name": "f", "arguments": arguments})
