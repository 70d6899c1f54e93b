"""References on their way to a service: with the message that starts a request over, within bounds."""

import pytest

from specinfer.remote import drafts as references
from specinfer.remote.drafts import add_references
from specinfer.v1 import speculator_pb2


def entries(*cached_len: int) -> list[speculator_pb2.DraftEntry]:
    return [speculator_pb2.DraftEntry(request_id=f"r{i}", base_len=base) for i, base in enumerate(cached_len)]


def sent(entry: speculator_pb2.DraftEntry) -> list[list[int]]:
    return [list(text.token_ids) for text in entry.references]


def test_they_go_where_a_request_starts_over() -> None:
    asked = entries(0, 7, 0)
    add_references(asked, {"r0": ((1, 2), (3,)), "r1": ((4,),), "r2": ()})
    assert [sent(entry) for entry in asked] == [[[1, 2], [3]], [], []]


def test_a_message_has_so_many_tokens_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_MAX_TOKENS", 10)
    asked = entries(0, 0, 9)
    add_references(asked, {"r0": ((1, 2, 3), (4, 5, 6), (7,)), "r1": ((8,) * 9,), "r2": ((9,),)})
    assert [sent(entry) for entry in asked] == [[[1, 2, 3], [4, 5]], [[8] * 5], []]
