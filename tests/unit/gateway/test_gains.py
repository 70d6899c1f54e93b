"""What is learnt of the gain of a pool and its parts, from known outcomes."""

import pytest

from gateway.planning.acceptance import Gains
from specinfer.tree import TokenTree, TreeBuilder, merge_trees
from tests.oracle import chain

ROOT = 7


def gains_of(speculators: int) -> Gains:
    gains = Gains()
    gains.enrol(frozenset(range(speculators)))
    return gains


FIRST, SECOND, BOTH = frozenset({0}), frozenset({1}), frozenset({0, 1})


def _outcome(tree: TokenTree, wrong: int = 9) -> tuple[TokenTree, list[int]]:
    return tree, [node for node in range(1, len(tree)) if tree.token_ids[node] != wrong]


def test_the_gain_of_a_part_of_the_pool_is_learnt_from_the_whole() -> None:
    """Speculator 0 brought the first two accepted nodes, 1 all of them; 0 alone would have stopped there."""
    gains = gains_of(2)
    gains.follow(["r"], 16)
    tree = merge_trees([(0, chain(ROOT, [1, 2, 9])), (1, chain(ROOT, [1, 2, 3, 4]))])
    gains.observe(1, BOTH, {"r": _outcome(tree)})
    assert gains.share(1, FIRST) == 0.5
    assert gains.share(1, SECOND) == 1.0
    assert [gains.nodes(1, part) for part in (FIRST, SECOND, BOTH)] == [3, 4, 5]
    assert gains.usual(1, FIRST) == pytest.approx(gains.usual(1, BOTH) / 2)


def test_a_part_that_is_not_first_on_the_path_would_have_brought_nothing() -> None:
    gains = gains_of(2)
    builder = TreeBuilder(ROOT)
    (node,) = builder.propose_points(0, [1], [0.9], speculator=0)
    builder.propose_points(node, [2], [0.9], speculator=1)
    gains.observe(1, BOTH, {"r": _outcome(builder.build())})
    assert gains.share(1, SECOND) == 0


def test_a_request_moves_from_what_is_usual_to_its_own() -> None:
    gains = gains_of(1)
    hopeless = _outcome(chain(ROOT, [9]))
    good = _outcome(chain(ROOT, [1, 2, 3, 4]))
    for number in range(50):
        gains.follow([f"r{number}"], 16)
        gains.observe(1, FIRST, {f"r{number}": good})
    usual = gains.usual(1, FIRST)
    gains.follow(["bad"], 16)
    assert gains.expected(1, FIRST) == pytest.approx(usual), "nothing is held against a new text"
    gains.observe(1, FIRST, {"bad": hopeless})
    first = gains.expected(1, FIRST)
    assert 0.8 * usual < first < usual, "one bad step proves little"
    for _ in range(60):
        gains.observe(1, FIRST, {"bad": hopeless})
    assert gains.expected(1, FIRST) < 0.25 * usual


def test_only_requests_that_want_trees_bring_gain() -> None:
    gains = gains_of(1)
    gains.follow(["a"], 16)
    alone = gains.expected(1, FIRST)
    assert gains.expected(4, FIRST) == pytest.approx(alone / 4)
    assert gains.expected(4, frozenset()) == 0


def test_what_a_smaller_batch_lends_is_not_more_than_small_trees_can_have() -> None:
    gains = gains_of(1)
    for _ in range(100):
        gains.follow(["r"], 16)
        gains.observe(1, FIRST, {"r": _outcome(chain(ROOT, [1, 2, 3, 4]))})
    assert gains.usual(1, FIRST) > 3
    gains.follow(["r"], 1)
    assert gains.usual(16, FIRST) == 0.5
    assert gains.nodes(16, FIRST) == 1
    assert gains.usual(1, FIRST) > 3


def test_a_small_part_asked_alone_says_nothing_about_the_whole() -> None:
    gains = gains_of(2)
    tree = merge_trees([(0, chain(9, [1])), (1, chain(9, [1, 2, 3]))])
    for _ in range(200):
        gains.observe(1, BOTH, {"r": (tree, [1, 2, 3])})
    before = gains.usual(1, BOTH)
    wrong = merge_trees([(0, chain(9, [5]))])
    for _ in range(200):
        gains.observe(1, FIRST, {"r": (wrong, [])})
    assert gains.usual(1, BOTH) == before


def test_what_most_of_the_pool_brings_tells_about_the_whole() -> None:
    """Usually the second adds a tenth; a request is as good for both as it is for the first, and a tenth."""
    gains = gains_of(2)
    gains.follow(["usual"], 8)
    tree = merge_trees([(0, chain(9, [1, 2])), (1, chain(9, [1, 2, 3]))])
    for step in range(200):
        gains.observe(1, BOTH, {"usual": (tree, [1, 2, 3] if step % 5 == 0 else [1, 2])})
    assert gains.usual(1, BOTH) == pytest.approx(1.1 * gains.usual(1, FIRST), rel=0.03)
    gains.follow(["good"], 8)
    good = merge_trees([(0, chain(9, [1, 2, 3, 4]))])
    for _ in range(100):
        gains.observe(1, FIRST, {"good": (good, [1, 2, 3, 4])})
    assert gains.expected(1, FIRST) == pytest.approx(3.7, abs=0.3)
    assert gains.expected(1, BOTH) == pytest.approx(1.1 * gains.expected(1, FIRST), rel=0.03)
