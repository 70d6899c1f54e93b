"""The mutator is reproducible, keeps messages parsable, and reaches every field."""

from random import Random

import pytest

from specinfer.v1 import common_pb2, generation_pb2, speculator_pb2, verifier_pb2
from specinfer.wire.codec import encode_tree
from tests.fuzz.mutator import Mutator, spoil_bytes
from tests.fuzz.values import boundary_value
from tests.support.trees import example_tree


def message() -> verifier_pb2.VerifyRequest:
    entries = [
        verifier_pb2.VerifyEntry(request_id=name, delta_token_ids=[3, 1], tree=encode_tree(example_tree()))
        for name in "abc"
    ]
    return verifier_pb2.VerifyRequest(step_id=7, entries=entries)


def spoilt(seed: int, count: int = 300) -> list[bytes]:
    mutator = Mutator(Random(seed))
    return [mutator.mutated(message()).SerializeToString(deterministic=True) for _ in range(count)]


def test_it_is_reproducible_and_leaves_its_argument_alone() -> None:
    assert spoilt(1) == spoilt(1) != spoilt(2)
    original = message()
    Mutator(Random(1)).mutated(original)
    assert original == message()


def test_most_copies_differ_in_many_ways() -> None:
    copies = spoilt(3)
    assert len(set(copies)) > 0.6 * len(copies)
    assert sum(copy == message().SerializeToString(deterministic=True) for copy in copies) < 0.15 * len(
        copies
    )


def test_only_the_chosen_elements_are_spoilt() -> None:
    for seed in range(50):
        changed = message()
        Mutator(Random(seed)).spoil_elements(changed.entries, [1])
        assert [changed.entries[0], changed.entries[2]] == [message().entries[0], message().entries[2]]


def test_rare_fields_are_mostly_left_alone() -> None:
    def steps(rare: frozenset[str]) -> int:
        mutator = Mutator(Random(4), rare)
        return sum(mutator.mutated(verifier_pb2.VerifyRequest(step_id=7)).step_id != 7 for _ in range(300))

    assert steps(frozenset({"step_id"})) < steps(frozenset()) / 2


@pytest.mark.parametrize(
    "kind", [generation_pb2.GenerateRequest, speculator_pb2.DraftRequest, verifier_pb2.VerifyReply]
)
def test_every_field_of_an_empty_message_is_reached(kind: type) -> None:
    mutator, reached = Mutator(Random(5)), set()
    for _ in range(600):
        reached.update(field.name for field, _ in mutator.mutated(kind()).ListFields())
    assert reached == {field.name for field in kind.DESCRIPTOR.fields}  # type: ignore[attr-defined]


def test_maps_get_entries_lose_them_and_change() -> None:
    mutator, start = Mutator(Random(5)), common_pb2.SamplingParams(logit_bias={7: 1.5, 8: -2.0})
    copies = [dict(mutator.mutated(start).logit_bias) for _ in range(300)]
    assert {len(copy) for copy in copies} >= {1, 2, 3}
    assert len({value for copy in copies for value in copy.values()}) > 4


def test_values_fit_their_fields() -> None:
    rng = Random(6)
    for kind in (generation_pb2.GenerateRequest, generation_pb2.Summary, verifier_pb2.VerifyEntry):
        for field in kind.DESCRIPTOR.fields:
            if field.message_type is None and not field.is_repeated:
                for _ in range(60):
                    setattr(kind(), field.name, boundary_value(field, rng))


def test_bytes_are_truncated_flipped_dropped_repeated_and_put_in() -> None:
    data, rng = bytes(range(40)), Random(7)
    lengths = {len(spoil_bytes(data, rng)) - len(data) for _ in range(200)}
    assert min(lengths) < -20
    assert 0 in lengths
    assert max(lengths) > 0
