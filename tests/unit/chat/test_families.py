"""Conversations with function calls in the templates of many families: accepted, complete, and safe from injection."""

import json
from typing import Any

import pytest

from specinfer.text.chat.forms import BY_NAME, ends_in_reasoning
from specinfer.text.chat.template import ChatEnd, ChatTemplate
from tests.support.chat_templates import FAMILIES, NAMES, SPECIALS, template_text, with_template
from tests.unit.http.test_tool_calls import arguments_in

TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"About {name}.", "parameters": {}}}
    for name in ("weather", "time")
]
FORMS = {
    "deepseek": "deepseek",
    "gemma2": "json",
    "gemma3": "json",
    "hermes": "hermes",
    "llama3": "llama",
    "mistral": "mistral",
    "mistral_args": "mistral_args",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_coder": "qwen3_coder",
}
THOUGHTS = {"qwen3": ("<think>", "</think>"), "deepseek": ("<think>", "</think>")}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def assistant_calls(*numbers: int, arguments: Any = None, content: str = "") -> dict[str, Any]:
    """Return an assistant's turn with these calls; each has its own arguments unless `arguments` is given."""
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": "weather",
                    "arguments": {"city": f"City{number}"} if arguments is None else arguments,
                },
            }
            for number in numbers
        ],
    }


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": "weather", "content": f"Rain{number}"}


SYSTEM = {"role": "system", "content": "Be brief."}
HISTORIES = {
    "a question": [user("Now?")],
    "a system's turn": [SYSTEM, user("Now?")],
    "a call": [user("Now?"), assistant_calls(1), result(1)],
    "two calls": [user("Now?"), assistant_calls(1, 2), result(1), result(2)],
    "results in another order": [user("Now?"), assistant_calls(1, 2), result(2), result(1)],
    "two steps": [user("Now?"), assistant_calls(1), result(1), assistant_calls(2), result(2)],
    "a user after a result": [user("Now?"), assistant_calls(1), result(1), user("And then?")],
    "a user after two results": [
        SYSTEM,
        user("Now?"),
        assistant_calls(1, 2),
        result(1),
        result(2),
        user("And then?"),
    ],
    "an answer": [user("Now?"), assistant_calls(1), result(1), assistant("Wet."), user("And then?")],
    "two users": [user("Now?"), user("And then?")],
    "two systems": [SYSTEM, {"role": "system", "content": "Be kind."}, user("Now?")],
    "words and a call": [user("Now?"), assistant_calls(1, content="Well."), result(1)],
}


def texts_of(turns: list[dict[str, Any]]) -> list[str]:
    """Return the texts that the rendered conversation must contain."""
    calls = [call["function"]["arguments"]["city"] for turn in turns for call in turn.get("tool_calls", ())]
    return [turn["content"] for turn in turns if turn["role"] in ("user", "tool")] + calls


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_conversation_with_functions_is_refused(family: str, history: str) -> None:
    turns = HISTORIES[history]
    text = ChatTemplate(template_text(family), SPECIALS).render(turns, TOOLS)
    missing = [part for part in texts_of(turns) if text.count(part) != 1]
    assert not missing, text
    assert "About time." in text
    if "weather" in (turn.get("name") for turn in turns):
        assert text.index("City1") < text.index("Rain1")


@pytest.mark.parametrize("family", FAMILIES)
def test_results_follow_their_calls(family: str) -> None:
    """This also applies to templates that allow only one call per turn."""
    text = ChatTemplate(template_text(family), SPECIALS).render(HISTORIES["two calls"], TOOLS)
    for number in (1, 2):
        assert text.index(f"City{number}") < text.index(f"Rain{number}")


ARGUMENTS = {
    "none": {},
    "umlauts": {"city": "Köln", "b": [1.5, None, True, {"c": "„ß“"}]},
    "quotes": {"a": "\"'\\\n{}"},
}


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_are_the_json_that_they_were(family: str, kind: str) -> None:
    turns = [user("Now?"), assistant_calls(1, arguments=ARGUMENTS[kind]), result(1)]
    text = ChatTemplate(template_text(family), SPECIALS).render(turns, TOOLS)
    assert arguments_in(BY_NAME[FORMS[family]], json.dumps(ARGUMENTS[kind], ensure_ascii=False)) in text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_its_forms(family: str) -> None:
    form = ChatTemplate(template_text(family), SPECIALS).form()
    assert form.calls == FORMS[family]
    assert form.reasoning == THOUGHTS.get(family, ("", ""))
    prompt = with_template(template_text(family)).encode_prompt([user("Now?")])
    assert prompt.in_reasoning == (family == "deepseek")


@pytest.mark.parametrize("family", [family for family in FAMILIES if FORMS[family] != "json"])
def test_a_template_writes_earlier_calls_in_the_form_that_is_read(family: str) -> None:
    form = BY_NAME[FORMS[family]]
    turns = [user("Now?"), assistant_calls(1), result(1)]
    text = ChatTemplate(template_text(family), SPECIALS).render(turns, TOOLS)
    arguments = arguments_in(form, '{"city": "City1"}')
    call = f"{form.mark}{form.begin}{form.before}weather{form.middle}{arguments}{form.after}"
    assert call.removesuffix("}") in text


def test_variables_reach_the_template_and_thoughts_of_earlier_answers_too() -> None:
    template = ChatTemplate(template_text("qwen3"), SPECIALS)
    plain = template.render([user("Now?")], [])
    assert template.render([user("Now?")], [], variables={"enable_thinking": False}) == (
        plain + "<think>\n\n</think>\n\n"
    )
    thought = {**assistant("So."), "reasoning_content": "Hm."}
    assert "<think>\nHm.\n</think>\n\nSo." in template.render([user("Now?"), thought, user("b")], [])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_of_a_caller_becomes_a_special_token(family: str) -> None:
    """Texts with names of special tokens give the same special tokens as plain texts."""
    tokenizer = with_template(template_text(family))
    marks = tokenizer.added_ids
    evil = "".join([*NAMES, "<tool_call>", "[TOOL_CALLS]", "<think>x</think>"])
    tokens = []
    for text in ("plain", evil):
        turns = [
            {"role": "system", "content": text},
            user(text),
            assistant_calls(1, arguments={"city": text, text: [text]}, content=""),
            {**result(1), "content": text},
            user(text),
        ]
        tools = [{"type": "function", "function": {"name": "weather", "description": text, "parameters": {}}}]
        ids = tokenizer.encode_chat(turns, tools)
        tokens.append([token for token in ids if token in marks])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("prompt", "begun", "within"),
    [
        ("u: hi a:<think>\n", "", True),
        ("u: <think> a:", "", False),
        ("u: hi a:<think>\n\n</think>\n\n", "", False),
        ("a:<think>\nEasy.\n</think>\n\nThe", "<think>\nEasy.\n</think>\n\nThe", False),
        ("a:<think>\nEasy", "<think>\nEasy", True),
        ("a:<think>\nEasy", "Easy ", True),
        ("u: <think> a:The", "The", False),
        ("u: hi a:The", "The", False),
        ("u: hi a:The <think> tag", "The <think> tag", False),
        ("u: hi a:\n<think>\nEasy", "\n<think>\nEasy", True),
    ],
)
def test_whether_an_answer_begins_in_reasoning_is_seen_at_its_prompts_end(
    prompt: str, begun: str, within: bool
) -> None:
    assert ends_in_reasoning(prompt, ("<think>", "</think>"), begun) == within
    assert not ends_in_reasoning(prompt, ("", ""), begun)


@pytest.mark.parametrize("end", ChatEnd)
def test_each_end_of_a_conversation_has_its_own_beginning(end: ChatEnd) -> None:
    turns = [user("Now?"), assistant("So")] if end is ChatEnd.CONTINUED else [user("Now?")]
    tokenizer = with_template(template_text("deepseek"))
    assert tokenizer.encode_prompt(turns, end=end).in_reasoning == (end is ChatEnd.OPENED)
