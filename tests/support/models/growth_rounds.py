"""Compare an executor's growth of whole trees with the reference growth on the same model."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.runner import ModelRunner
from specinfer.tree import TokenTree

TasksFor = Callable[[list[KVSequence], int], Sequence[GrowthTask]]
"""Function that returns the tasks of a round, given the sequences."""


def contexts(round_: int) -> list[list[int]]:
    """Return the new tokens of five requests (vocabulary of 97); the second round continues the first."""
    rng = np.random.default_rng(round_)
    return [rng.integers(0, 97, n).tolist() for n in (1, 7, 33, 64, 16)]


def grow_side_by_side(
    fast: ModelRunner,
    other: ModelRunner,
    tasks_for: TasksFor,
    shape: GrowthShape,
    vocabulary: torch.Tensor,
    requests: int,
    rounds: int,
) -> list[tuple[TokenTree, TokenTree]]:
    """Return (executor's, reference) trees of all rounds, drafted on two caches of the same model."""
    reference = ReferenceGrowth(other.forward, shape, vocabulary)
    ours, theirs = ([runner.open() for _ in range(requests)] for runner in (fast, other))
    pairs: list[tuple[TokenTree, TokenTree]] = []
    for round_ in range(rounds):
        tasks = tasks_for(ours, round_)
        for task in tasks:
            fast.cache.reserve(task.sequence, len(task.delta) + shape.scored_nodes(task.limits))
        grown = fast.grow(tasks, shape, vocabulary)
        fast.cache.check()
        expected = reference.grow(tasks_for(theirs, round_))
        for sequence in theirs:
            other.cache.commit(sequence, ())
        pairs += zip(grown, expected, strict=True)
    return pairs


def assert_same(actual: TokenTree, expected: TokenTree, apart: float = 1e-4) -> None:
    """Check that two trees have equal nodes and draws; scores and q may differ by the relative error `apart`."""
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    assert actual.parents.tolist() == expected.parents.tolist()
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=apart)
    assert len(actual.proposals) == len(expected.proposals)
    assert actual.order == expected.order
    for a, b in zip(actual.proposals, expected.proposals, strict=True):
        assert (a.parent, a.kind, a.children) == (b.parent, b.kind, b.children)
        assert a.q_token_ids.tolist() == b.q_token_ids.tolist()
        np.testing.assert_allclose(a.q_probabilities, b.q_probabilities, rtol=apart, atol=1e-7)
