"""Names of special tokens in callers' texts remain text, however a template uses the texts."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.text.tokenizer import Tokenizer
from tests.support.models.byte_tokenizer import byte_tokenizer

MARKS = ("<|a|>", "<|b|>")
PARTS = ["<|a|>", "<|b|>", "<", "|>", "hi", " ", "\n", "<|", "é", "\U0010ffff"]
USES = [
    "m.content",
    "m.content | trim",
    "m.content | tojson",
    "m.content[:9]",
    "'x' + m.content + 'y'",
    "m.content ~ '!'",
]


@cache
def tokenizer(use: str) -> Tokenizer:
    """Return a tokenizer of bytes with two special tokens, and a template with this expression."""
    return Tokenizer(
        byte_tokenizer(MARKS), f"{{% for m in messages %}}<|a|>{{{{ {use} }}}}<|b|>{{% endfor %}}", {}
    )


@pytest.mark.parametrize("use", USES)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=8))
def test_only_the_template_writes_special_tokens(use: str, parts: list[str]) -> None:
    made, text = tokenizer(use), "".join(parts)
    made.parse_special_tokens = False
    ids = made.encode_chat([{"role": "user", "content": text}])
    marks = [made.special_token(name) for name in MARKS]
    assert [token for token in ids if token in marks] == marks
    made.parse_special_tokens = True
    parsed = made.encode_chat([{"role": "user", "content": text}])
    if not any(mark in text for mark in MARKS):
        assert ids == parsed or "\U0010ffff" in text


WAYS = {
    "plain": "{% set c = m.content %}",
    "macro": "{% macro words(w) %}{{ w }}{% endmacro %}{% set c = words(m.content) | trim('!') %}",
    "block": "{% set c %}{{ m.content }}{% endset %}",
    "filtered block": "{% set c | trim('!') %}{{ m.content }}{% endset %}",
    "caller": "{% macro of() %}{{ caller() }}{% endmacro %}"
    "{% set c %}{% call of() %}{{ m.content }}{% endcall %}{% endset %}",
    "joined": "{% set c = '' ~ m.content ~ '' %}",
    "percent": "{% set c = '%s' % m.content %}",
    "times": "{% set c = m.content * 1 %}",
    "format": "{% set c = '{}'.format(m.content) %}",
    "join": "{% set c = [m.content, ''] | join %}",
    "method join": "{% set c = ''.join([m.content]) %}",
    "replace": "{% set c = m.content | replace('!', '') %}",
    "map": "{% set c = [m.content] | map('string') | first %}",
    "signs": "{% set c = m.content | list | join %}",
    "string": "{% set c = m.content | string | indent %}",
    "namespace": "{% set n = namespace(c='') %}{% set n.c = n.c + m.content %}{% set c = n.c %}",
}
SEEN = (
    "{{ '<|a|>' in c }}{{ c.split('<|a|>') | length }}{{ c | replace('<|b|>', '#') }}{{ c == '<|a|>hi' }}"
    "{{ c.startswith('<|') }}{{ c.find('|>') }}{{ c.split('<|b|>')[-1].lstrip('<') }}"
)


@cache
def seeing(way: str) -> Tokenizer:
    template = f"{{% for m in messages %}}{WAYS[way]}{SEEN}{{% endfor %}}"
    return Tokenizer(byte_tokenizer(MARKS), template, {})


@pytest.mark.parametrize("way", WAYS)
@given(parts=st.lists(st.sampled_from(PARTS[:-1]), max_size=6))
def test_a_template_sees_marks_in_any_text_that_it_makes(way: str, parts: list[str]) -> None:
    """It renders what plain Jinja does, which hides nothing."""
    made = seeing(way)
    messages = [{"role": "user", "content": "".join(parts)}]
    assert made.decode_all(made.encode_chat(messages)) == made._chat.render(messages, [])


@pytest.mark.parametrize("number", [0xD83D, 0xDC00, 0xDC01, 0xDFFF])
def test_half_a_pair_of_surrogates_becomes_a_replacement(number: int) -> None:
    """JSON of tools and arguments can contain it, and so can a template."""
    made, half = tokenizer("m.content"), f"<{chr(number)}"
    given, written = tokenizer("m.content ~ tools[0].x"), tokenizer("m.content ~ '\\ud83d'")
    assert "\ufffd" in made.decode(made.encode_chat([{"role": "user", "content": half}]))
    assert "\ufffd" in given.decode(given.encode_chat([{"role": "user", "content": "a"}], [{"x": half}]))
    assert "\ufffd" in written.decode(written.encode_chat([{"role": "user", "content": "a"}]))
    assert "\ufffd" in made.decode(made.encode(half))
