"""Lookahead decoding: windows of guesses, the target's predictions after them, and the n-grams found."""

from collections.abc import Sequence

import numpy as np
import pytest

from specinfer.drafters import DrafterDescription, DraftJob, TargetTopK
from specinfer.drafters.lookahead import (
    LookaheadDrafter,
    LookaheadShape,
    NgramPool,
    Window,
    predictions,
    written,
)
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits, check_tree
from tests.support.trees import paths

V = 23
LARGE = TreeLimits(60, 20)


def after(token: int) -> int:
    """Return the target's next token, which depends only on the last one."""
    return (token * 5 + 3) % V


def predictions_of(tree: TokenTree) -> TargetTopK:
    tokens = tree.token_ids.astype(np.int64)
    return TargetTopK(tokens, tree.parents, np.array([[after(t)] for t in tokens.tolist()]))


def make(window: int, ngram: int, candidates: int) -> LookaheadDrafter:
    description = DrafterDescription(vocab_size=V, target_top_k=1)
    return LookaheadDrafter(description, LookaheadShape(window, ngram, candidates))


def draft(
    drafter: LookaheadDrafter,
    context: Sequence[int],
    top_k: TargetTopK | None = None,
    limits: TreeLimits = LARGE,
    name: str = "r",
) -> TokenTree:
    (tree,) = drafter.draft([DraftJob(name, context, limits, GREEDY, target_top_k=top_k)])
    assert isinstance(tree, TokenTree)
    check_tree(tree, V, limits.nodes + 1)
    return tree


def steps(drafter: LookaheadDrafter, count: int, name: str = "r") -> list[int]:
    """Decode `count` tokens; return the number of new tokens of each step."""
    context, top_k, new_tokens = [1, 2, 3, 4], None, list[int]()
    while len(context) < 4 + count:
        tree = draft(drafter, context, top_k, name=name)
        top_k, known, new = predictions_of(tree), paths(tree), [after(context[-1])]
        while (context[-1], *new) in known:
            new.append(after(new[-1]))
        context += new
        new_tokens.append(len(new))
    return new_tokens


def test_the_first_row_of_the_window_is_a_path_and_later_rows_are_below_it() -> None:
    window = Window(LookaheadShape(3, 3, 2), [1])
    window.rows = [[10, 11, 12], [13, 14, 15]]
    assert list(window.paths()) == [(10, 13), (10, 11, 14), (10, 11, 12, 15)]
    drafter = make(3, 3, 2)
    drafter._windows["r"] = window
    tree = drafter._tree(DraftJob("r", [9], LARGE, GREEDY))
    assert paths(tree) == {
        *((9,), (9, 10), (9, 10, 11), (9, 10, 11, 12)),
        *((9, 10, 13), (9, 10, 11, 14), (9, 10, 11, 12, 15)),
    }


def test_predictions_become_the_last_row_and_accepted_columns_are_removed() -> None:
    window = Window(LookaheadShape(3, 3, 2), [1, 2])
    window.rows = [[10, 11, 12], [13, 14, 15]]
    predicted = {(10, 13): 16, (10, 11, 14): 17, (10, 11, 12, 15): 18}
    window.advance(predicted, 3)
    assert window.rows == [[13, 14, 15], [16, 17, 18]]
    window.rows = [[10, 11, 12], [13, 14, 15]]
    window.advance(predicted, 5)
    assert [row[:2] for row in window.rows] == [[14, 15], [17, 18]], "one token accepted, and the bonus"
    assert [len(row) for row in window.rows] == [3, 3]
    window.advance({}, 90)
    assert [len(row) for row in window.rows] == [3, 3]


@pytest.mark.parametrize(("window", "ngram"), [(5, 3), (4, 4), (6, 2)])
def test_iterations_find_the_n_grams_of_the_target(window: int, ngram: int) -> None:
    """With a full pool a step gives N tokens: N - 1 that complete an n-gram, and the bonus token."""
    drafter = make(window, ngram, 3)
    new_tokens = steps(drafter, 60)
    assert new_tokens[-4:] == [ngram] * 4
    assert steps(drafter, 30, "another")[0] == 1, "requests share nothing"


def test_the_window_alone_finds_n_grams() -> None:
    """The text repeats only after 22 tokens, so the first 20 contain no earlier n-grams."""
    assert sum(count > 1 for count in steps(make(8, 3, 3), 20)) >= 3
    assert len(steps(make(8, 3, 3), 20)) < 16


def test_a_pool_keeps_the_latest_of_each_first_token() -> None:
    pool = NgramPool(2)
    for ngram in ((1, 2, 3), (1, 4, 5), (7, 8, 9), (1, 2, 3), (1, 6, 6)):
        pool.add(ngram)
    assert pool.after(1) == [(6, 6), (2, 3)]
    assert pool.after(7) == [(8, 9)]
    assert pool.after(2) == []


def test_the_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specinfer.drafters.lookahead._MAX_FIRST_TOKENS", 2)
    pool = NgramPool(1)
    for first in (1, 2, 1, 3):
        pool.add((first, 5))
    assert [pool.after(first) for first in (1, 2, 3)] == [[(5,)], [], [(5,)]]


def test_known_n_grams_come_first_in_a_small_budget_and_alone_in_a_chain() -> None:
    drafter = make(5, 3, 3)
    for ngram in ((4, 5, 6), (4, 7, 8)):
        drafter._pool("r").add(ngram)
    context = [1, 2, 3, 4]
    assert paths(draft(drafter, context, limits=TreeLimits(4, 4))) == {
        (4,),
        (4, 7),
        (4, 7, 8),
        (4, 5),
        (4, 5, 6),
    }
    assert len(draft(drafter, context, limits=TreeLimits(7, 4))) == 8, "and then the window"
    assert draft(drafter, context, limits=TreeLimits(9, 9, width=1)).token_ids.tolist() == [4, 7, 8]
    assert len(draft(drafter, context, limits=TreeLimits(0, 0))) == 1


def test_n_grams_come_from_columns_and_from_the_targets_text() -> None:
    window = Window(LookaheadShape(2, 3, 2), [1])
    window.rows = [[10, 11], [13, 14]]
    assert list(window.ngrams({(10, 13): 16})) == [(10, 13, 16)], "the other column was cut"
    # 9 -> 1 is the target's choice, and 1 -> 2; the node 3 is not
    top_k = TargetTopK.of([9, 1, 2, 3], [-1, 0, 1, 0], [1, 2, 7, 8])
    assert list(written(top_k, 3)) == [(9, 1, 2), (1, 2, 7)]
    assert list(written(top_k, 2)) == [(9, 1), (1, 2), (2, 7), (3, 8)]


def test_predictions_are_found_by_path() -> None:
    top_k = TargetTopK.of([9, 1, 2, 1], [-1, 0, 1, 2], [5, 6, 7, 8])
    assert predictions(top_k) == {(): 5, (1,): 6, (1, 2): 7, (1, 2, 1): 8}
