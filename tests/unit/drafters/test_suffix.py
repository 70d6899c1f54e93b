"""Suffix decoding: continuations of earlier occurrences, weighted by the length of the match."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.drafters import DraftJob
from specinfer.drafters.search import LONGEST, Occurrences
from specinfer.drafters.suffix import FinishedTexts, SuffixDrafter, weighted_tree
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits, check_tree
from tests.support.trees import paths

WIDE = TreeLimits(20, 4)


def draft(
    drafter: SuffixDrafter, context: Sequence[int], limits: TreeLimits = WIDE, name: str = "r"
) -> TokenTree:
    (tree,) = drafter.draft([DraftJob(name, context, limits, GREEDY)])
    assert isinstance(tree, TokenTree)
    return tree


def scores(tree: TokenTree) -> dict[tuple[int, ...], float]:
    return {tree.sequence_of(node)[1:]: round(float(tree.scores[node]), 4) for node in range(1, len(tree))}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 3), st.integers(1, 40))
def test_matches_equal_those_of_a_plain_search(text: list[int], shortest: int, step: int) -> None:
    it, growing = Occurrences(shortest), list[int]()
    for start in range(0, len(text), step):
        growing += text[start : start + step]
        it.file(growing, start)
    expected = {}
    for end in range(1, len(text)):
        lengths = [n for n in range(1, min(LONGEST, end) + 1) if text[end - n : end] == text[len(text) - n :]]
        if lengths and max(lengths) >= shortest:
            expected[end] = max(lengths)
    matches = list(it.matches(text))
    assert {match.end: match.length for match in matches} == expected
    assert [match.end for match in matches] == sorted(expected, reverse=True)


def test_a_longer_match_outweighs_shorter_ones() -> None:
    # 7 8 9 -> 1 once, 9 -> 2 twice
    context = [7, 8, 9, 1, 9, 2, 9, 2, 7, 8, 9]
    scores_of = scores(draft(SuffixDrafter(), context, TreeLimits(20, 1)))
    total = 4**3 + 2 * 4
    assert scores_of == {(1,): round(64 / total * 0.5, 4), (2,): round(8 / total * 0.2, 4)}


def test_trust_grows_along_a_branch() -> None:
    scores_of = scores(draft(SuffixDrafter(), [5, 1, 2, 3, 4, 5], WIDE))
    assert scores_of == {(1,): 0.2, (1, 2): 0.35, (1, 2, 3): 0.5, (1, 2, 3, 4): 0.6}
    few = draft(SuffixDrafter(), [5, 1, 2, 3, 4, 5], TreeLimits(20, 4, min_path_probability=0.05))
    assert paths(few) == {(5,), (5, 1), (5, 1, 2)}, "0.2 * 0.35 * 0.5 is below it"


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(0, 6),
    st.integers(0, 4),
    st.sampled_from([None, 1, 2]),
)
def test_trees_keep_their_limits(context: list[int], nodes: int, depth: int, width: int | None) -> None:
    tree = draft(SuffixDrafter(), context, TreeLimits(nodes, depth, width))
    check_tree(tree, 3, nodes + 1)
    parents = tree.parents.tolist()
    assert width is None or all(parents.count(node) <= width for node in range(len(tree)))
    assert all(len(path) <= depth + 1 for path in paths(tree))


def test_the_most_probable_nodes_are_kept() -> None:
    context = [7, 8, 9, 1, 4, 9, 2, 9, 2, 7, 8, 9]
    whole = draft(SuffixDrafter(), context, TreeLimits(50, 3))
    probability = {(): 1.0}
    for path, score in scores(whole).items():  # depth first: parents come before
        probability[path] = probability[path[:-1]] * score
    ranked = sorted(list(probability.values())[1:], reverse=True)
    for nodes in range(1, len(whole)):
        kept = scores(draft(SuffixDrafter(), context, TreeLimits(nodes, 3)))
        assert sum(probability[path] for path in kept) == pytest.approx(sum(ranked[:nodes]))


def test_contexts_grow_and_requests_are_separate() -> None:
    drafter = SuffixDrafter()
    assert len(draft(drafter, [1, 2, 3], name="a")) == 1
    assert len(draft(drafter, [4, 2], name="b")) == 1, "texts of other requests are not searched"
    assert paths(draft(drafter, [1, 2, 3, 2], TreeLimits(3, 1), "a")) == {(2,), (2, 3)}


@pytest.mark.parametrize("learn", [False, True])
def test_finished_requests_are_learnt_only_if_allowed(learn: bool) -> None:
    drafter = SuffixDrafter(learn)
    draft(drafter, [11, 12, 13, 14], name="first")
    assert len(draft(drafter, [50, 11, 12], name="second")) == 1, "it has not finished"
    drafter.release("first")
    expected = {(12,), (12, 13), (12, 13, 14)} if learn else {(12,)}
    assert paths(draft(drafter, [51, 11, 12], name="third")) == expected, "at once"
    drafter.release("unknown")


def test_what_is_learnt_is_bounded_and_the_oldest_go() -> None:
    learnt = FinishedTexts(max_tokens=25)
    for number in range(20):
        learnt.add([number, 99] * 5)
    assert {match.text[0] for match in learnt.occurrences.matches([99])} == {18, 19}
    assert not list(learnt.occurrences.matches([3]))
    assert paths(weighted_tree(19, list(learnt.occurrences.matches([19])), TreeLimits(2, 2))) == {
        (19,),
        (19, 99),
        (19, 99, 19),
    }
