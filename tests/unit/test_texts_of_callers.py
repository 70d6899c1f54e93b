"""Names of special tokens in callers' texts remain text, however a template uses the texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.tokenizer import Tokenizer
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


def tokenizer(use: str) -> Tokenizer:
    """Return a tokenizer of bytes with two special tokens, and a template with this expression."""
    return Tokenizer(
        byte_tokenizer(MARKS), f"{{% for m in messages %}}<|a|>{{{{ {use} }}}}<|b|>{{% endfor %}}", {}
    )


@pytest.mark.parametrize("use", USES)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=8))
def test_only_the_template_writes_special_tokens(use: str, parts: list[str]) -> None:
    made, text = tokenizer(use), "".join(parts)
    ids = made.encode_chat([{"role": "user", "content": text}])
    marks = [made.special_token(name) for name in MARKS]
    assert [token for token in ids if token in marks] == marks
    made.parse_special_tokens = True
    parsed = made.encode_chat([{"role": "user", "content": text}])
    if not any(mark in text for mark in MARKS):
        assert ids == parsed or "\U0010ffff" in text
