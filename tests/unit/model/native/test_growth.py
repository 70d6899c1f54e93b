"""Trees grown in one compiled call equal those of the reference growth, node for node and draw for draw."""

from dataclasses import replace

import pytest
import torch

from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.runner import ModelRunner
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits
from specinfer.tree.shape import depths
from tests.support.models.growth_rounds import assert_same, contexts, grow_side_by_side
from tests.support.tiny_models import runner_of, tiny_transformers

pytestmark = pytest.mark.native

MODEL = tiny_transformers("llama", head_dim=32, hidden_size=96, intermediate_size=152, num_attention_heads=6)
VOCABULARY = torch.randperm(97, generator=torch.Generator().manual_seed(4))
"""Draft token -> target token, as in a reduced head; a permutation, so that confusing the two shows."""
SAMPLED = Sampling(temperature=0.8, seed=11)


def make(dtype: str = "float32") -> ModelRunner:
    if dtype == "cache in bytes":
        return runner_of(MODEL, executor="native", kv_type="q8_0", kv_tokens=8192)
    if dtype == "q8_0":
        return runner_of(MODEL, executor="native", dtype="bfloat16", weights="q8_0", kv_tokens=8192)
    return runner_of(MODEL, executor="native", dtype=dtype, kv_tokens=8192)


def tasks_for(
    sequences: list[KVSequence],
    round_: int,
    limits: list[TreeLimits],
    sampling: Sampling,
    blind: float | None,
) -> list[GrowthTask]:
    return [
        GrowthTask(s, d, x, sampling, blind)
        for s, d, x in zip(sequences, contexts(round_), limits, strict=True)
    ]


def grow_both(
    shape: GrowthShape,
    limits: list[TreeLimits],
    sampling: Sampling,
    dtype: str = "float32",
    blind: float | None = None,
) -> list[tuple[TokenTree, TokenTree]]:
    """Return (native, reference) trees of two rounds of drafting, on two caches of the same model."""
    return grow_side_by_side(
        make(dtype),
        make(dtype),
        lambda sequences, round_: tasks_for(sequences, round_, limits, sampling, blind),
        shape,
        VOCABULARY,
        len(limits),
        rounds=2,
    )


LIMITS = [TreeLimits(12, 5), TreeLimits(1, 1), TreeLimits(0, 4), TreeLimits(30, 3), TreeLimits(9, 7)]

POINT, DRAWS = ProposalKind.POINT, ProposalKind.WITHOUT_REPLACEMENT
STOCHASTIC = [
    SAMPLED,
    Sampling(temperature=1.0, top_k=5, seed=2**64 - 1),
    Sampling(temperature=0.6, top_p=0.7, seed=3),
    Sampling(temperature=1.3, top_k=20, top_p=0.8, seed=4),
]

LEAST = [0.0, 0.5, 0.3, 0.2, 0.04]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q8_0", "cache in bytes"])
@pytest.mark.parametrize("beam", [1, 4, 30])
def test_best_first_trees_are_those_of_the_reference(beam: int, dtype: str) -> None:
    for actual, expected in grow_both(GrowthShape(beam=beam), LIMITS, GREEDY, dtype):
        assert_same(actual, expected)


@pytest.mark.parametrize("least", [0.01, 0.03, 0.2])
def test_trees_that_stop_at_improbable_paths_are_those_of_the_reference(least: float) -> None:
    shape = GrowthShape(min_path_probability=least)
    for sampling, kind in ((GREEDY, POINT), (SAMPLED, POINT), (SAMPLED, DRAWS)):
        for actual, expected in grow_both(replace(shape, kind=kind), LIMITS, sampling):
            assert_same(actual, expected)
    chains = [TreeLimits(depth, depth, width=1) for depth in (1, 2, 5, 8, 3)]
    for actual, expected in grow_both(shape, chains, GREEDY):
        assert_same(actual, expected)


def test_every_request_has_its_own_limit_of_path_probability() -> None:
    """Requests with different limits share a batch; the limit of the speculator also applies."""
    limits = [replace(limit, min_path_probability=p) for limit, p in zip(LIMITS, LEAST, strict=True)]
    for sampling, kind in ((GREEDY, POINT), (SAMPLED, POINT), (SAMPLED, DRAWS)):
        shape = GrowthShape(min_path_probability=0.02, kind=kind)
        pairs = grow_both(shape, limits, sampling)
        for actual, expected in pairs:
            assert_same(actual, expected)
        unlimited = grow_both(shape, LIMITS, sampling)
        changed = [
            a.parents.tolist() != b.parents.tolist() for (a, _), (b, _) in zip(pairs, unlimited, strict=True)
        ]
        assert any(changed)
        assert not any(changed[:: len(LIMITS)]), "the first request has only the speculator's limit"


def test_a_level_that_costs_more_than_it_gains_is_not_grown() -> None:
    """Times of levels are measured first. Trees of drawn nodes, chains and expansion vectors do not end early."""
    runner = make()
    for name, shape, limits, sampling, ends in (
        ("points", GrowthShape(), TreeLimits(30, 6), GREEDY, True),
        ("noise", GrowthShape(), TreeLimits(30, 6), SAMPLED, True),
        ("draws", GrowthShape(kind=DRAWS), TreeLimits(30, 6), SAMPLED, False),
        ("a chain", GrowthShape(), TreeLimits(6, 6, width=1), GREEDY, False),
        ("a vector", GrowthShape(ExpansionVector((2, 1, 1))), TreeLimits(30, 6), GREEDY, False),
    ):
        trees = []
        for speed in (0.0, 0.0, 1e15):
            sequence = runner.open()
            wanted = replace(limits, tokens_per_second=speed)
            runner.cache.reserve(sequence, 4 + shape.scored_nodes(wanted))
            (tree,) = runner.grow([GrowthTask(sequence, (5, 17, 3, 88), wanted, sampling)], shape, VOCABULARY)
            trees.append(max(depths(tree.parents)))
            runner.cache.release(sequence)
        assert trees[0] == trees[1] > 1, name
        assert bool(trees[2] == 1) is ends, name


def test_expansion_vectors_and_sequences_are_those_of_the_reference() -> None:
    shape = GrowthShape(ExpansionVector((2, 1, 3, 1)))
    limits = [TreeLimits(50, 8), TreeLimits(5, 2), TreeLimits(4, 4, width=1), *LIMITS[2:4]]
    for actual, expected in grow_both(shape, limits, GREEDY):
        assert_same(actual, expected)
    chains = [TreeLimits(depth, depth, width=1) for depth in (1, 2, 5, 8, 3)]
    for actual, expected in grow_both(GrowthShape(), chains, GREEDY):
        assert_same(actual, expected)


@pytest.mark.parametrize("kind", [ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("sampling", STOCHASTIC)
def test_sampled_trees_are_those_of_the_reference_draw_for_draw(
    kind: ProposalKind, sampling: Sampling
) -> None:
    """Draws use the same q and the same random numbers: `randomness.h` reimplements numpy's Philox."""
    pairs = grow_both(GrowthShape(kind=kind, q_support=24), LIMITS, sampling)
    for actual, expected in pairs:
        assert_same(actual, expected)
    assert any(len(set(p.children)) > 1 for tree, _ in pairs for p in tree.proposals)


@pytest.mark.parametrize("sampling", STOCHASTIC)
def test_trees_that_use_the_noise_are_those_of_the_reference(sampling: Sampling) -> None:
    pairs = grow_both(GrowthShape(q_support=24), LIMITS, sampling)
    for actual, expected in pairs:
        assert_same(actual, expected)
    others = grow_both(GrowthShape(q_support=24), LIMITS, replace(sampling, seed=77))
    assert any(
        a.token_ids.tolist() != b.token_ids.tolist() for (a, _), (b, _) in zip(pairs, others, strict=True)
    )


def test_trees_of_hidden_noise_are_those_of_the_reference() -> None:
    """Trees grow as for a greedy request; scores use the request's temperature."""
    for actual, expected in grow_both(GrowthShape(), LIMITS, GREEDY, blind=0.8):
        assert_same(actual, expected)


@pytest.mark.parametrize("kind", [POINT, DRAWS])
def test_sampled_chains_and_expansions_are_those_of_the_reference(kind: ProposalKind) -> None:
    chains = [TreeLimits(depth, depth, width=1) for depth in (1, 2, 5, 8, 3)]
    for actual, expected in grow_both(GrowthShape(kind=kind), chains, SAMPLED):
        assert_same(actual, expected)
    for actual, expected in grow_both(GrowthShape(ExpansionVector((3, 2, 1)), kind=kind), LIMITS, SAMPLED):
        assert_same(actual, expected)


def test_a_batch_does_not_change_its_members() -> None:
    shape = GrowthShape()
    together = grow_both(shape, LIMITS, SAMPLED, "bfloat16")
    for index, limits in enumerate(LIMITS):
        alone = make("bfloat16")
        sequence = alone.open()
        task = GrowthTask(sequence, contexts(0)[index], limits, SAMPLED)
        alone.cache.reserve(sequence, len(task.delta) + shape.scored_nodes(limits))
        (tree,) = alone.grow([task], shape, VOCABULARY)
        assert_same(together[index][0], tree)


def test_greedy_and_sampled_requests_share_a_batch() -> None:
    runner = make()
    shape = GrowthShape(kind=DRAWS)
    tasks = [
        GrowthTask(runner.open(), delta, TreeLimits(8, 4), sampling)
        for delta, sampling in zip(contexts(0), [GREEDY, SAMPLED, GREEDY, SAMPLED, GREEDY], strict=True)
    ]
    for task in tasks:
        runner.cache.reserve(task.sequence, len(task.delta) + shape.scored_nodes(task.limits))
    kinds = [{p.kind for p in tree.proposals} for tree in runner.grow(tasks, shape, VOCABULARY)]
    point, drawn = {ProposalKind.POINT}, {ProposalKind.WITHOUT_REPLACEMENT}
    assert kinds == [point, drawn, point, drawn, point]
