"""Encoding and decoding of messages: no field is lost, and enums have the same numbers."""

from dataclasses import replace

import pytest
from hypothesis import given

from gateway.api.encode import encode_finish
from specinfer.client.answer import read_summary
from specinfer.errors import AlreadyExistsError, MalformedTreeError, SettingError, SpecInferError
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus, FinishReason
from specinfer.scheduling import request as gateway_request
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.tree import ProposalKind, TokenTree, merge_trees
from specinfer.v1 import common_pb2, generation_pb2, tree_pb2
from specinfer.wire.codec import (
    decode_constraint,
    decode_sampling,
    decode_tree,
    encode_constraint,
    encode_sampling,
    encode_tree,
)
from specinfer.wire.status import status_of
from tests.support.trees import example_tree, trees


@given(trees())
def test_trees_survive_the_wire(tree: TokenTree) -> None:
    tree = merge_trees([(0, tree), (1, tree)], 9)  # draws have an order then
    data = encode_tree(tree).SerializeToString()
    back = decode_tree(tree_pb2.TokenTree.FromString(data))
    assert back.token_ids.tolist() == tree.token_ids.tolist()
    assert back.parents.tolist() == tree.parents.tolist()
    assert back.scores.tolist() == tree.scores.tolist()
    assert back.order == tree.order
    for a, b in zip(back.proposals, tree.proposals, strict=True):
        assert (a.parent, a.speculator, a.kind, a.children) == (b.parent, b.speculator, b.kind, b.children)
        assert a.q_token_ids.tolist() == b.q_token_ids.tolist()
        assert a.q_probabilities.tolist() == b.q_probabilities.tolist(), "q must arrive bit for bit"


def test_the_reader_may_set_the_speculator_of_a_tree() -> None:
    tree = merge_trees([(2, example_tree())])
    message = encode_tree(tree)
    assert {p.speculator for p in decode_tree(message).proposals} == {2}
    assert {p.speculator for p in decode_tree(message, 5).proposals} == {5}


def test_an_unknown_kind_is_a_malformed_tree() -> None:
    message = tree_pb2.TokenTree(token_ids=[1], parents=[-1], proposals=[tree_pb2.Proposal(kind=77)])  # type: ignore[arg-type]
    with pytest.raises(MalformedTreeError, match="ProposalKind"):
        decode_tree(message)


def test_a_hidden_seed_is_not_sent() -> None:
    message = encode_sampling(Sampling(0.5, seed=7), with_seed=False)
    assert not message.HasField("seed")
    assert decode_sampling(message).temperature == 0.5


@pytest.mark.parametrize("kind", ConstraintKind)
def test_constraints_survive_the_wire(kind: ConstraintKind) -> None:
    constraint = Constraint(kind, '["é", "b"]')
    assert decode_constraint(encode_constraint(constraint)) == constraint
    assert decode_constraint(common_pb2.Constraint()) is None


def test_sampling_survives_and_unset_is_not_greedy() -> None:
    sampling = Sampling(0.5, 40, 0.75, seed=2**63, min_p=0.25)
    assert decode_sampling(encode_sampling(sampling)) == sampling
    adjusted = replace(
        sampling,
        logit_bias=((3, -0.5), (70, 1.5)),
        presence_penalty=0.5,
        frequency_penalty=-2,
        repetition_penalty=1.5,
    )
    assert decode_sampling(encode_sampling(adjusted)) == adjusted
    assert decode_sampling(encode_sampling(adjusted, with_adjustments=False)) == sampling
    assert decode_sampling(common_pb2.SamplingParams()).temperature == 1.0
    assert decode_sampling(common_pb2.SamplingParams(), default_seed=5).seed == 5


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (ProposalKind, tree_pb2.ProposalKind, "PROPOSAL_KIND_"),
        (EntryStatus, common_pb2.EntryStatus, "ENTRY_STATUS_"),
        (gateway_request.Speculation, generation_pb2.Speculation, "SPECULATION_"),
    ],
)
def test_enums_share_their_numbers(ours, theirs, prefix: str) -> None:  # type: ignore[no-untyped-def]
    for member in ours:
        assert theirs.Value(prefix + member.name) == member.value


def test_finish_reasons_share_their_words() -> None:
    assert {encode_finish(reason) for reason in FinishReason} == set(generation_pb2.FinishReason.keys())
    for reason in FinishReason:
        summary = generation_pb2.Summary(finish_reason=encode_finish(reason))  # type: ignore[arg-type]
        assert read_summary(summary).finish_reason is reason


def test_errors_map_to_the_most_specific_status() -> None:
    assert status_of(AlreadyExistsError("x")).name == "ALREADY_EXISTS"
    assert status_of(MalformedTreeError("f", 1, "w")).name == "INVALID_ARGUMENT"
    assert status_of(SettingError("f", 1, "w")).name == "INVALID_ARGUMENT"
    assert status_of(SpecInferError("x")).name == "INTERNAL"
