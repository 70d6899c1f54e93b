"""Detection of whether a template takes the arguments of calls as text or as objects."""

import json
from typing import Any

import pytest

from specinfer.text.chat.template import ChatTemplate

CALLS = (
    "{% for turn in messages %}{% for call in turn.tool_calls or [] %}[%s]{% endfor %}"
    "{{ turn.content }}{% endfor %}"
)
TEMPLATES = {
    "text put together": ("{{ 'call ' + call.function.arguments }}", "call %s"),
    "text put together, tilde": ("{{ 'call ' ~ call.function.arguments }}", "call %s"),
    "text as it is": ("{{ call.function.arguments }}", "%s"),
    "a fence": ("```json\n{{ call.function['arguments'] }}\n```", "```json\n%s\n```"),
    "an object in JSON": ("{{ call.function.arguments | tojson }}", "%s"),
    "either": (
        "{% if call.function.arguments is string %}{{ call.function.arguments }}"
        "{% else %}{{ call.function.arguments | tojson }}{% endif %}",
        "%s",
    ),
    "an object by its items": (
        "{% for key, value in call.function.arguments | items %}{{ key }}={{ value }};{% endfor %}",
        None,
    ),
    "refuses text": (
        "{% if call.function.arguments is string %}{{ raise_exception('no text') }}{% endif %}"
        "{{ call.function.arguments | tojson }}",
        "%s",
    ),
    "refuses objects": (
        "{% if call.function.arguments is mapping %}{{ raise_exception('no objects') }}{% endif %}"
        "{{ call.function.arguments }}",
        "%s",
    ),
}
GIVEN = {
    "none": {},
    "umlauts and null": {"city": "Köln", "b": None, "c": [1.5, True]},
    "quotes": {"a": "\"'\\{}"},
}


def rendered(part: str, arguments: Any) -> str:
    text = "{% if tools %}{% endif %}" + CALLS.replace("%s", part)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "R"},
    ]
    return ChatTemplate(text, {}).render(turns, [])


@pytest.mark.parametrize("arguments", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_gets_the_arguments_that_it_takes(kind: str, arguments: dict[str, Any]) -> None:
    part, shown = TEMPLATES[kind]
    if shown is None:
        expected = "".join([f"{name}={value};" for name, value in arguments.items()])
    else:
        expected = shown % json.dumps(arguments, ensure_ascii=False)
    assert rendered(part, arguments) == f"Q[{expected}]R"
