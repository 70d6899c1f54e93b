"""Server-sent events for clients that split the text into lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_svc.streaming import encode


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\n", "\r", "\x0b", "\x0c", "\x1c"])
def test_no_character_of_a_text_ends_a_line(end: str) -> None:
    assert len(encode({"text": f"one{end}two"}).decode().splitlines()) == 2


@given(st.dictionaries(st.text(), st.text()), st.sampled_from(["", "r:5"]))
def test_events_read_by_lines_equal_the_sent_data(data: dict[str, str], identity: str) -> None:
    """`str.splitlines` splits at more characters than any client."""
    lines = encode(data, identity).decode().splitlines()
    assert len(lines) == 2 + bool(identity)
    assert json.loads(lines[-2].removeprefix("data: ")) == data
