"""Server-sent events for clients that split the text into lines."""

import json

from hypothesis import given
from hypothesis import strategies as st

from http_svc.streaming import encode


@given(st.dictionaries(st.text(), st.text()), st.sampled_from(["", "r:5"]))
def test_events_read_by_lines_equal_the_sent_data(data: dict[str, str], identity: str) -> None:
    """`str.splitlines` splits at more characters than any client."""
    lines = encode(data, identity).decode().splitlines()
    assert len(lines) == 2 + bool(identity)
    assert json.loads(lines[-2].removeprefix("data: ")) == data
