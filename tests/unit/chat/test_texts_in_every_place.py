"""Names of special tokens stay text in every place of a conversation, in the template of every family."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.text.tokenizer import Tokenizer
from tests.support.chat_templates import FAMILIES, NAMES, template_text, with_template

PLACES = (
    *("system", "user", "words", "reasoning", "key", "value", "nested", "result", "last"),
    *("tool description", "parameter", "parameter description", "enum", "const", "extra", "variable"),
)


@cache
def tokenizer(family: str) -> Tokenizer:
    return with_template(template_text(family))


def special_tokens(family: str, places: dict[str, str]) -> list[int]:
    """Return the special tokens of a conversation that has these texts in these places."""

    def at(place: str) -> str:
        return f"{PLACES.index(place)}{places.get(place, '')}b"

    properties = {
        at("parameter"): {"type": "string", "description": at("parameter description"), "enum": [at("enum")]},
        "c": {"const": {at("const"): [at("const")]}},
    }
    function: dict[str, Any] = {
        "name": "f",
        "description": at("tool description"),
        "parameters": {"type": "object", "properties": properties, at("extra"): at("extra")},
    }
    arguments = {at("key"): at("value"), "n": [{at("nested"): at("nested")}]}
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
    asked = {"role": "assistant", "content": at("words"), "reasoning_content": at("reasoning")}
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": at("system")},
        {"role": "user", "content": at("user")},
        {**asked, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": at("result")},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": at("last")},
    ]
    made = tokenizer(family)
    tools = [{"type": "function", "function": function}]
    ids = made.encode_chat(
        turns, tools, variables={"system_note": at("variable"), "date_string": at("variable")}
    )
    return [token for token in ids if token in made.added_ids]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(PLACES), st.sampled_from(NAMES), min_size=1, max_size=3))
def test_no_text_of_a_caller_becomes_a_special_token(family: str, places: dict[str, str]) -> None:
    assert special_tokens(family, places) == special_tokens(family, {})


@pytest.mark.parametrize("family", FAMILIES)
def test_each_place_alone(family: str) -> None:
    whole = special_tokens(family, {})
    assert whole
    for place in PLACES:
        for name in [name for name in NAMES if name in template_text(family)][:2]:
            assert special_tokens(family, {place: f"\n{name}system\n"}) == whole, (place, name)
