"""References are sent to a service in the message that starts a request over, up to a size limit."""

import pytest

from specinfer.remote import draft_codec as references
from specinfer.remote.draft_codec import add_references
from specinfer.v1 import speculator_pb2


def entries(*cached_len: int) -> list[speculator_pb2.DraftEntry]:
    return [speculator_pb2.DraftEntry(request_id=f"r{i}", base_len=base) for i, base in enumerate(cached_len)]


def sent(entry: speculator_pb2.DraftEntry) -> list[list[int]]:
    return [list(text.token_ids) for text in entry.references]


def test_they_are_sent_if_a_request_starts_over() -> None:
    draft_entries = entries(0, 7, 0)
    add_references(draft_entries, {"r0": ((1, 2), (3,)), "r1": ((4,),), "r2": ()})
    assert [sent(entry) for entry in draft_entries] == [[[1, 2], [3]], [], []]


def test_a_message_has_a_maximum_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_MAX_REFERENCE_TOKENS", 10)
    draft_entries = entries(0, 0, 9)
    add_references(draft_entries, {"r0": ((1, 2, 3), (4, 5, 6), (7,)), "r1": ((8,) * 9,), "r2": ((9,),)})
    assert [sent(entry) for entry in draft_entries] == [[[1, 2, 3], [4, 5]], [[8] * 5], []]
