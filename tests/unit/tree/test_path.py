"""The best path of a tree, against all paths."""

from hypothesis import given
from hypothesis import strategies as st

from specinfer.tree import TokenTree, TreeBuilder
from specinfer.tree.shape import best_path
from tests.support.oracle import chain
from tests.support.trees import CAT, DOG, SAT, THE, example_tree, trees


def expected(tree: TokenTree, node: int) -> float:
    """Return the expected accepted tokens of the path to a node: the sum of the products of its scores."""
    scores: list[float] = []
    while node:
        scores.insert(0, float(tree.scores[node]))
        node = int(tree.parents[node])
    total, product = 0.0, 1.0
    for score in scores:
        product *= score
        total += product
    return total


@given(trees(), st.integers(0, 5))
def test_no_path_has_more_expected_tokens(tree: TokenTree, max_tokens: int) -> None:
    path = best_path(tree, max_tokens)
    by_tokens = {tree.sequence_of(node)[1:]: node for node in range(len(tree))}
    worth = {tokens: expected(tree, node) for tokens, node in by_tokens.items() if len(tokens) <= max_tokens}
    assert abs(worth[tuple(path)] - max(worth.values())) < 1e-5


def test_continuations_count_too() -> None:
    """0.6 without a continuation is worse than 0.5 with a probable one: 0.6 < 0.5 + 0.5 * 0.9."""
    builder = TreeBuilder(THE)
    _, cat = builder.propose_points(0, [DOG, CAT], [0.6, 0.5])
    builder.propose_points(cat, [SAT], [0.9])
    assert best_path(builder.build(), 2) == [CAT, SAT]
    assert best_path(builder.build(), 1) == [DOG]


def test_examples() -> None:
    assert best_path(example_tree(), 4) == [CAT, SAT]
    assert best_path(chain(THE, [7, 8, 9]), 2) == [7, 8]
    assert best_path(TokenTree.root_only(THE), 4) == []
