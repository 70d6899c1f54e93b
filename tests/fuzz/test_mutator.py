"""The mutator is reproducible, and reaches every field of messages that can still be parsed."""

from random import Random
from typing import Any

import pytest

from specinfer.v1 import common_pb2, generation_pb2, speculator_pb2, verifier_pb2
from specinfer.wire.codec import encode_tree
from tests.fuzz.mutator import Mutator
from tests.support.trees import example_tree


def message() -> verifier_pb2.VerifyRequest:
    entries = [
        verifier_pb2.VerifyEntry(request_id=name, delta_token_ids=[3, 1], tree=encode_tree(example_tree()))
        for name in "abc"
    ]
    return verifier_pb2.VerifyRequest(step_id=7, entries=entries)


def spoilt(seed: int, start: Any, rare: frozenset[str] = frozenset()) -> list[Any]:
    mutator = Mutator(Random(seed), rare)
    return [mutator.mutated(start) for _ in range(600)]


def test_copies_are_reproducible_and_differ() -> None:
    original = message()
    copies = [copy.SerializeToString(deterministic=True) for copy in spoilt(1, original)]
    assert original == message()
    assert copies == [copy.SerializeToString(deterministic=True) for copy in spoilt(1, original)]
    assert len(set(copies)) > 0.6 * len(copies)


def test_only_the_chosen_elements_and_rarely_rare_fields_are_spoilt() -> None:
    for seed in range(50):
        changed = message()
        Mutator(Random(seed)).spoil_elements(changed.entries, [1])
        assert [changed.entries[0], changed.entries[2]] == [message().entries[0], message().entries[2]]
    start = verifier_pb2.VerifyRequest(step_id=7)
    rare, usual = (
        sum(copy.step_id != 7 for copy in spoilt(4, start, names))
        for names in (frozenset({"step_id"}), frozenset[str]())
    )
    assert rare < usual / 2


@pytest.mark.parametrize(
    "kind", [generation_pb2.GenerateRequest, speculator_pb2.DraftRequest, verifier_pb2.VerifyReply]
)
def test_every_field_of_an_empty_message_is_reached(kind: Any) -> None:
    reached = {field.name for copy in spoilt(5, kind()) for field, _ in copy.ListFields()}
    assert reached == {field.name for field in kind.DESCRIPTOR.fields}


def test_maps_get_entries_lose_them_and_change() -> None:
    copies = [
        dict(copy.logit_bias) for copy in spoilt(5, common_pb2.SamplingParams(logit_bias={7: 1.5, 8: -2.0}))
    ]
    assert {len(copy) for copy in copies} >= {1, 2, 3}
    assert len({value for copy in copies for value in copy.values()}) > 4
