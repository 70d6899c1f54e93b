"""Calls are read alike however their text is cut into pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_svc.tools import CallReader, message_of

TEXT = '{"name": "f", "arguments": {"a": ", \\"arguments\\": ", "b": {}}}'
ARGUMENTS = '{"a": ", \\"arguments\\": ", "b": {}}'


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_pieces_of_a_call(cuts: list[int]) -> None:
    reader, ends = CallReader("id"), [0, *sorted(cuts), len(TEXT)]
    deltas = [reader.push(TEXT[start:end]) for start, end in pairwise(ends)]
    calls = [call for delta in [*deltas, reader.end(complete=True)] for call in delta.get("tool_calls", ())]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("id", "f")
    assert all("id" not in call for call in calls[1:])
    assert "".join([call["function"]["arguments"] for call in calls]) == ARGUMENTS


@pytest.mark.parametrize("end", range(1, len(TEXT)))
def test_a_call_that_was_cut_off_keeps_what_there_is(end: int) -> None:
    message, called = message_of(TEXT[:end], "id", complete=False)
    head = len(TEXT) - len(ARGUMENTS) - 1
    if end < head:
        assert (called, message["content"]) == (False, TEXT[:end])
    else:
        assert called
        assert message["tool_calls"][0]["function"]["arguments"] == TEXT[head:end]


def test_words_are_words() -> None:
    message, called = message_of("It rains {here}", "id", complete=False)
    assert (called, message["content"]) == (False, "It rains {here}")
    assert message_of("", "id", complete=False)[0]["content"] == ""
