"""TokenTree: the example of the docs, and malformed trees that `validate` refuses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from specinfer.errors import MalformedTreeError
from specinfer.tree import Proposal, ProposalKind, TokenTree, check_tree
from specinfer.tree.shape import children, depth_first, depths
from specinfer.tree.token_tree import distribution
from tests.support.trees import CAT, DOG, RAN, SAT, THE, VOCABULARY, example_tree, trees


def test_example_is_laid_out_as_drawn() -> None:
    tree = example_tree()
    assert tree.token_ids.tolist() == [THE, CAT, SAT, RAN, DOG]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 0]
    assert tree.sequence_of(3) == (THE, CAT, RAN)
    assert tree.path_to(3) == [1, 3]


def test_topology_of_the_example() -> None:
    parents = example_tree().parents
    assert depths(parents).tolist() == [0, 1, 2, 2, 1]
    assert children(parents.tolist()) == [[1, 4], [2, 3], [], [], []]


@given(trees())
def test_built_trees_are_valid_and_depth_first(tree: TokenTree) -> None:
    check_tree(tree, VOCABULARY, max_nodes=100)
    assert depth_first(tree.parents.tolist()) == list(range(len(tree)))


@given(trees())
def test_depths_and_children_agree_with_paths(tree: TokenTree) -> None:
    actual, kids = depths(tree.parents), children(tree.parents.tolist())
    for node in range(1, len(tree)):
        *ancestors, last = tree.path_to(node)
        assert (actual[node], last) == (len(ancestors) + 1, node)
        assert node in kids[ancestors[-1] if ancestors else 0]


def _with(**changes: object) -> TokenTree:
    return replace(example_tree(), **changes)  # type: ignore[arg-type]


def _ints(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(values, np.int32)


POINT, WITHOUT = ProposalKind.POINT, ProposalKind.WITHOUT_REPLACEMENT
Q, Q2 = distribution([CAT, DOG], [0.5, 0.5]), distribution([SAT, RAN], [0.5, 0.5])
MALFORMED = {
    "cycle": (_with(parents=_ints(-1, 2, 1, 1, 0)), "parents[1] = 2"),
    "parent after child": (_with(parents=_ints(-1, 0, 4, 1, 0)), "parents[2] = 4"),
    "two roots": (_with(parents=_ints(-1, 0, 1, -1, 0)), "parents[3] = -1"),
    "root with parent": (_with(parents=_ints(0, 0, 1, 1, 0)), "parents[0] = 0"),
    "foreign token": (_with(token_ids=_ints(THE, CAT, 99, RAN, DOG)), "token_ids[2] = 99"),
    "negative token": (_with(token_ids=_ints(THE, CAT, -7, RAN, DOG)), "token_ids[2] = -7"),
    "twin siblings": (_with(token_ids=_ints(THE, CAT, SAT, SAT, DOG)), "siblings must"),
    "lengths differ": (_with(parents=_ints(-1, 0, 1, 1)), "lengths must agree"),
    "not a number": (_with(scores=np.full(5, np.nan, np.float32)), "scores[0] = nan: must be in [0, 1]"),
    "negative score": (_with(scores=np.array([1, 1, -0.5, 1, 1], np.float32)), "scores[2] = -0.5"),
    "score above one": (_with(scores=np.array([1, 1, 1, 1, 1.5], np.float32)), "scores[4] = 1.5"),
    "nothing proposed": (
        _with(proposals=(*example_tree().proposals, Proposal(7, 0, POINT, ()))),
        "children = (): must name a child of node 7",
    ),
    "draws repeated without end": (
        _with(proposals=(Proposal(0, 0, ProposalKind.WITH_REPLACEMENT, (1,) * 41, *Q),)),
        "candidates = 41: must be at most 40 for a tree of 5 nodes",
    ),
    "a q of a whole vocabulary": (
        _with(proposals=(Proposal(0, 0, WITHOUT, (1,), *distribution(range(6000), [1 / 6000] * 6000)),)),
        "q_token_ids = 6000",
    ),
    "unproposed node": (
        _with(proposals=example_tree().proposals[:1]),
        "every node but the root must be in a proposal",
    ),
    "foreign child": (
        _with(proposals=(Proposal(0, 0, POINT, (2,)),)),
        "children = 2: must be a child of node 0",
    ),
    "child out of range": (_with(proposals=(Proposal(0, 0, POINT, (9,)),)), "children = 9"),
    "repeated point": (_with(proposals=(Proposal(0, 0, POINT, (1, 1)),)), "only draws with replacement"),
    "point with q": (
        _with(proposals=(Proposal(0, 0, POINT, (1, 4), *Q),)),
        "must be empty in a point proposal",
    ),
    "sampled without q": (_with(proposals=(Proposal(0, 0, WITHOUT, (1, 4)),)), "as many ids"),
    "q sums to 0.9": (
        _with(proposals=(Proposal(0, 0, WITHOUT, (1, 4), *distribution([CAT, DOG], [0.5, 0.4])),)),
        "sum to one",
    ),
    "negative q": (
        _with(proposals=(Proposal(0, 0, WITHOUT, (1, 4), *distribution([CAT, DOG], [1.5, -0.5])),)),
        "sum to one",
    ),
    "q twice": (
        _with(proposals=(Proposal(0, 0, WITHOUT, (1, 4), *distribution([CAT, CAT], [0.5, 0.5])),)),
        "must be distinct",
    ),
    "order of no proposal": (_with(order=(0, 0, 1, 2)), "order = 2: must be from 0 to 1"),
    "negative order": (_with(order=(0, 0, 1, -1)), "order = -1"),
    "order too short": (_with(order=(0, 0, 1)), "once per child"),
    "order too long": (_with(order=(0, 0, 1, 1, 1)), "once per child"),
    "children first": (_with(order=(1, 1, 0, 0)), "must have node 1 before its children"),
    "drawn children first": (
        _with(proposals=(Proposal(1, 0, WITHOUT, (2, 3), *Q2), Proposal(0, 0, WITHOUT, (1, 4), *Q))),
        "must have node 1 before its children",
    ),
    "drawn outside q": (
        _with(proposals=(Proposal(0, 0, WITHOUT, (1, 4), *distribution([CAT, SAT], [0.5, 0.5])),)),
        "each drawn token must have q above 0",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_trees_are_refused_with_field_and_value(name: str) -> None:
    tree, message = MALFORMED[name]
    with pytest.raises(MalformedTreeError) as caught:
        check_tree(tree, VOCABULARY, max_nodes=5)
    assert message in str(caught.value)


def test_more_nodes_than_allowed() -> None:
    with pytest.raises(MalformedTreeError, match="nodes = 5:"):
        check_tree(example_tree(), VOCABULARY, max_nodes=4)


def test_draws_are_tried_in_the_order_of_the_tree_across_proposals() -> None:
    """The order is: a draw of A, two of B, another of A; points are not tried."""
    cat_dog, sat_ran = Proposal(0, 0, WITHOUT, (1, 2), *Q), Proposal(0, 1, WITHOUT, (3, 4), *Q2)
    tokens, parents = _ints(THE, CAT, DOG, SAT, RAN), _ints(-1, 0, 0, 0, 0)
    proposals = (cat_dog, sat_ran, Proposal(0, 2, POINT, (1,)))
    tree = TokenTree(tokens, parents, proposals, np.ones(5, np.float32), (0, 1, 2, 1, 0))
    check_tree(tree, VOCABULARY, max_nodes=5)
    assert tree.draws_by_parent() == {0: [(0, 0), (1, 0), (1, 1), (0, 1)]}
    assert replace(tree, order=()).draws_by_parent() == {0: [(0, 0), (0, 1), (1, 0), (1, 1)]}
