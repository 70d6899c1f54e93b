"""Prompt lookup: continuations of earlier occurrences of the last tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.drafters import DraftJob
from specinfer.drafters.ngram import NgramDrafter, NgramIndex
from specinfer.errors import SettingError
from specinfer.request.sampling import Sampling
from specinfer.tree import TokenTree, TreeLimits
from tests.support.trees import paths


def draft(drafter: NgramDrafter, context: list[int], limits: TreeLimits, name: str = "r") -> TokenTree:
    (tree,) = drafter.draft([DraftJob(name, context, limits, Sampling(temperature=0))])
    assert isinstance(tree, TokenTree)
    return tree


def test_matches_become_branches() -> None:
    # the cat sat on . the cat ran . the cat
    context = [1, 2, 3, 4, 9, 1, 2, 5, 9, 1, 2]
    tree = draft(NgramDrafter(2, 4, 3), context, TreeLimits(10, 3))
    assert paths(tree) == {(2,), (2, 5), (2, 5, 9), (2, 5, 9, 1), (2, 3), (2, 3, 4), (2, 3, 4, 9)}


def test_budget_depth_and_width_are_kept() -> None:
    context = [1, 2, 3, 4, 9, 1, 2, 5, 9, 1, 2]
    drafter = NgramDrafter(2, 4, 3)
    assert len(draft(drafter, context, TreeLimits(4, 3))) == 5
    assert paths(draft(drafter, context, TreeLimits(10, 1))) == {(2,), (2, 5), (2, 3)}
    assert paths(draft(drafter, context, TreeLimits(10, 3, width=1))) == {
        (2,),
        (2, 5),
        (2, 5, 9),
        (2, 5, 9, 1),
    }
    assert len(draft(drafter, context, TreeLimits(0, 0))) == 1


def test_longer_matches_come_first() -> None:
    # 1 2 3 occurred before 7; the later 2 3 was followed by 8
    context = [1, 2, 3, 7, 0, 2, 3, 8, 0, 1, 2, 3]
    tree = draft(NgramDrafter(2, 3, 1), context, TreeLimits(1, 1))
    assert paths(tree) == {(3,), (3, 7)}


def test_without_a_match_there_is_no_tree() -> None:
    assert len(draft(NgramDrafter(), [1, 2, 3, 4, 5], TreeLimits(8, 4))) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 8))
def test_the_incremental_index_finds_the_matches_of_a_plain_search(context: list[int], pieces: int) -> None:
    index = NgramIndex(1, 3)
    for stop in sorted({len(context) * i // pieces for i in range(1, pieces + 1)}):
        index.extend(context[:stop])
    positions = {}
    for length in (3, 2, 1):
        if length > len(context):
            continue
        for end in range(len(context) - 1, length - 1, -1):
            if context[end - length : end] == context[-length:]:
                positions.setdefault(end, length)
    assert index.matches(context, 1000) == list(positions.items())


def test_bad_lengths_are_refused() -> None:
    with pytest.raises(SettingError, match="shortest = 5:"):
        NgramDrafter(5, 4)
