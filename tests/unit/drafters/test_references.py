"""Reference texts of a request: drafts copy from any place in them, and never beyond their end."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from specinfer.drafters import Drafter, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.search import References
from specinfer.drafters.suffix import SuffixDrafter
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits
from tests.support.trees import paths

CHAIN = TreeLimits(20, 6)
DRAFTERS: dict[str, Callable[[], Drafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}


def draft(
    drafter: Drafter, context: Sequence[int], texts: Sequence[Sequence[int]], limits: TreeLimits = CHAIN
) -> set[tuple[int, ...]]:
    references = References(texts) if texts else None
    (tree,) = drafter.draft([DraftJob("r", context, limits, GREEDY, references=references)])
    assert isinstance(tree, TokenTree)
    assert tree.token_ids.min() >= 0, "what separates texts is no token"
    return paths(tree)


@pytest.mark.parametrize("method", DRAFTERS)
def test_what_follows_in_a_reference_is_drafted_up_to_its_end(method: str) -> None:
    texts = [[50, 51, 52, 53], [7, 8, 9, 10, 11], [60, 61]]
    tree = draft(DRAFTERS[method](), [1, 2, 7, 8], texts)
    assert tree == {(8,), (8, 9), (8, 9, 10), (8, 9, 10, 11)}
    assert draft(DRAFTERS[method](), [1, 2, 7, 8], []) == {(8,)}
    assert draft(DRAFTERS[method](), [1, 10, 11], texts) == {(11,)}, "the end of a text has no continuation"


@pytest.mark.parametrize("method", DRAFTERS)
def test_the_longest_match_wins_at_any_place_of_a_reference(method: str) -> None:
    """The last two tokens occur a thousand times; only one place, in the middle, matches more of the context."""
    noise = [token for number in range(500) for token in (5, 6, 100 + number)]
    text = [*noise, 1, 2, 3, 5, 6, 70, 71, 72, *noise]
    assert draft(DRAFTERS[method](), [1, 2, 3, 5, 6], [text], TreeLimits(3, 3)) == {
        (6,),
        (6, 70),
        (6, 70, 71),
        (6, 70, 71, 72),
    }


def test_ngrams_take_the_longest_match_of_context_and_references() -> None:
    context = [1, 2, 3, 40, 9, 7, 1, 2, 3]
    longer, shorter = [7, 1, 2, 3, 41], [2, 3, 41]
    one = TreeLimits(1, 1)
    assert draft(NgramDrafter(), context, [longer], one) == {(3,), (3, 41)}, "4 tokens match there, 3 here"
    assert draft(NgramDrafter(), context, [shorter], one) == {(3,), (3, 40)}
    assert draft(NgramDrafter(), context, [[1, 2, 3, 41]], one) == {(3,), (3, 40)}, "of equal ones its own"


def test_a_suffix_weighs_references_like_the_requests_own_text() -> None:
    context = [1, 2, 40, 9, 1, 2]
    (tree,) = SuffixDrafter().draft(
        [DraftJob("r", context, TreeLimits(8, 1), GREEDY, references=References([[8, 9, 1, 2, 41]]))]
    )
    assert isinstance(tree, TokenTree)
    assert tree.token_ids.tolist() == [2, 41, 40], "3 tokens match before 41, 2 before 40"
    assert tree.scores[1:] == pytest.approx([4 / 5 * 0.5, 1 / 5 * 0.35], abs=1e-6)


def test_of_many_occurrences_a_sample_of_the_whole_text_is_used() -> None:
    text = [token for number in range(1000) for token in (5, 100 + number)]
    matches = References([text]).matches([5], 1)
    assert 32 < len(matches) <= 64
    followers = np.array([match.text[match.end] for match in matches]) - 100
    assert followers.min() < 100
    assert followers.max() > 900
    assert {match.length for match in matches} == {1}


def test_references_of_a_finished_request_are_not_learnt() -> None:
    drafter = SuffixDrafter(learn=True)
    draft(drafter, [1, 2, 7], [[7, 8, 9]])
    drafter.release("r")
    assert draft(drafter, [7], []) == {(7,)}
    assert draft(drafter, [2], []) == {(2,), (2, 7)}, "the request's own text is learnt"
