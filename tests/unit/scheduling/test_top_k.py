"""Relayed predictions of the target: each service gets as many as it reads, of the latest step."""

import pytest

from specinfer.scheduling.target_outputs import TopKRelay, WantedOutputs
from specinfer.tree import TokenTree
from specinfer.v1 import verifier_pb2
from tests.support.oracle import chain

TREE = chain(5, [6])


def relay(*widths: int) -> TopKRelay:
    made = TopKRelay()
    made.want(widths)
    return made


def test_each_service_gets_as_many_as_it_reads() -> None:
    it = relay(3, 0, 2)
    assert it.k == 3
    it.arrived("a", TREE, ((1, 2, 3), (11, 12, 13)))
    trees = {k: it.take("a", k) for k in (3, 2, 0)}
    assert trees[0] is None
    assert trees[3] is not None
    assert trees[3].top_k.ravel().tolist() == [1, 2, 3, 11, 12, 13]
    assert trees[2] is not None
    assert trees[2].tree.parents.tolist() == [-1, 0]
    assert (trees[2].tree.token_ids.tolist(), trees[2].top_k.ravel().tolist()) == ([5, 6], [1, 2, 11, 12])


def test_the_latest_step_of_each_request_is_kept_until_it_ends() -> None:
    it = relay(1)
    it.arrived("a", TREE, ((1,), (2,)))
    it.arrived("b", TREE, ((3,), (4,)))
    it.arrived("a", TokenTree.root_only(5), ((7,),))
    (newest, other) = it.take("a", 1), it.take("b", 1)
    assert newest is not None
    assert other is not None
    assert (newest.top_k.ravel().tolist(), other.top_k.ravel().tolist()) == ([7], [3, 4])
    it.forget(["a"])
    assert it.take("a", 1) is None
    it.want([2])
    assert it.take("b", 2) is None, "of another width"


@pytest.mark.parametrize(
    ("name", "ids", "sound"), [("a", 6, True), ("a", 0, True), ("a", 5, False), ("b", 6, False)]
)
def test_predictions_that_do_not_match_the_request_are_named(name: str, ids: int, sound: bool) -> None:
    wanted = WantedOutputs(top_k={"a": 3})
    wrong = wanted.contradiction(name, 2, verifier_pb2.Verdict(top_k_token_ids=range(ids)))
    assert (wrong == "") == sound
