"""Token recycling: earlier predictions of the target are proposed, the most probable paths first."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from specinfer.drafters import DrafterDescription, DraftJob, TargetTopK
from specinfer.drafters.recycling import AdjacencyMatrix, RecyclingDrafter, best_first
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits
from tests.support.trees import paths

V, K = 12, 3
ROWS = {1: [2, 3, 4], 2: [5, 1, 6], 3: [2, 7, 8], 5: [2, 9, 1]}
"""Predictions after a token; tokens that are no keys have none."""
CHANCES = [0.5, 0.3, 0.1]


def predicted(rows: dict[int, Sequence[int]]) -> TargetTopK:
    parents = np.arange(-1, len(rows) - 1, dtype=np.int32)
    return TargetTopK(np.array(list(rows), np.int64), parents, np.array(list(rows.values()), np.int64))


def matrix(rows: dict[int, Sequence[int]] = ROWS) -> AdjacencyMatrix:
    made = AdjacencyMatrix(V, K)
    made.update(predicted(rows).token_ids, predicted(rows).top_k)
    return made


def every_path(depth: int) -> dict[tuple[int, ...], float]:
    """Return all paths that begin with token 1, and their probabilities."""
    paths = level = {(): 1.0}
    for _ in range(depth):
        level = {
            (*path, token): above * chance
            for path, above in level.items()
            for token, chance in zip(ROWS.get((1, *path)[-1], ()), CHANCES, strict=False)
        }
        paths = paths | level
    return {(1, *path): p for path, p in paths.items()}


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 9, 14])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_most_probable_paths_are_proposed(nodes: int, depth: int) -> None:
    probability = every_path(depth)
    actual = paths(best_first(matrix(), CHANCES, 1, TreeLimits(nodes, depth)))
    assert len(actual) == min(1 + nodes, len(probability))
    left_out = [p for path, p in probability.items() if path not in actual]
    assert min(probability[path] for path in actual) >= max(left_out, default=0.0)


def test_a_chain_and_improbable_paths() -> None:
    chain = best_first(matrix(), CHANCES, 1, TreeLimits(4, 4, width=1))
    assert chain.token_ids.tolist() == [1, 2, 5, 2, 5]
    few = best_first(matrix(), CHANCES, 1, TreeLimits(20, 4, min_path_probability=0.25))
    assert paths(few) == {(1,), (1, 2), (1, 3), (1, 2, 5)}
    assert np.allclose(few.scores, [1.0, 0.5, 0.5, 0.3])


def test_requests_share_predictions() -> None:
    drafter = RecyclingDrafter(DrafterDescription(vocab_size=V, target_top_k=K))

    def draft(*jobs: DraftJob) -> list[list[int]]:
        trees = drafter.draft(jobs)
        assert all(isinstance(tree, TokenTree) for tree in trees)
        return [tree.token_ids.tolist() for tree in trees if isinstance(tree, TokenTree)]

    def job(name: str, last: int, top_k: TargetTopK | None = None) -> DraftJob:
        return DraftJob(name, [9, last], TreeLimits(2, 2), GREEDY, target_top_k=top_k)

    assert draft(job("a", 1)) == [[1]]
    first = draft(job("a", 1), job("b", 2, predicted({1: [2, 3, 4], 2: [7, 8, 9]})))
    assert first == [[1, 2, 7], [2, 7, 8]], "in the same step, too"
    later = draft(job("c", 1, predicted({1: [6, 2, 3]})))
    assert later == [[1, 6, 2]], "the latest prediction"


def test_probabilities_by_rank_are_measured() -> None:
    """Here the token that the target predicts is always the second of the row's earlier predictions."""
    it = matrix({1: [2, 3, 4]})
    prior = it.chances()
    for before, now in pairwise([[2, 3, 4], [3, 2, 4]] * 2000):
        assert before != now
        it.update(np.array([1]), np.array([now]))
    assert prior[0] > prior[1]
    assert np.allclose(it.chances(), [0.0, 1.0, 0.0], atol=0.02)


def test_tokens_beyond_the_tokenizer_are_left_out() -> None:
    it = matrix({1: [V + 3, 2, 3], V + 3: [1, 2, 3]})
    tree = best_first(it, CHANCES, 1, TreeLimits(9, 9))
    assert paths(tree) == {(1,), (1, V + 3), (1, 2), (1, 3)}, (
        "it may be proposed, but nothing is known after it"
    )
