"""Trees grown on the device, interpreted if there is no GPU, equal those of the reference growth."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.gpu import growth
from specinfer.model.runner import ModelRunner
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits
from tests.support.models.growth_rounds import assert_same, grow_side_by_side
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE

MODEL = tiny_transformers("llama", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
VOCABULARY = torch.randperm(97, generator=torch.Generator().manual_seed(4)).to(torch.int32)
"""Draft token -> target token, as in a reduced head; a permutation, so that confusing the two shows."""
LIMITS = [TreeLimits(12, 4), TreeLimits(1, 1), TreeLimits(0, 4), TreeLimits(30, 3)]
NOISY = Sampling(temperature=0.8, seed=11)
CUT = Sampling(temperature=1.3, top_k=20, top_p=0.8, seed=2**64 - 1)
NUCLEUS = Sampling(temperature=1.0, top_p=0.7, seed=3)


def make(executor: str) -> ModelRunner:
    device = DEVICE if executor == "gpu" else "cpu"
    return runner_of(MODEL, executor=executor, device=device, kv_tokens=1024)


def tasks_for(
    sequences: list[KVSequence],
    round_: int,
    limits: list[TreeLimits],
    samplings: list[Sampling],
    blind: float | None = None,
) -> list[GrowthTask]:
    """Return the tasks of a round: new tokens of each request; later rounds continue the contexts."""
    rng = np.random.default_rng(round_)
    return [
        GrowthTask(sequence, rng.integers(0, 97, n).tolist(), x, sampling, blind)
        for sequence, n, x, sampling in zip(sequences, (1, 7, 33, 16), limits, samplings, strict=False)
    ]


def grow_both(
    shape: GrowthShape,
    limits: list[TreeLimits],
    samplings: list[Sampling],
    blind: float | None = None,
    rounds: int = 1,
) -> list[tuple[TokenTree, TokenTree]]:
    """Return (device, reference) trees, on two caches of the same model."""
    return grow_side_by_side(
        make("gpu"),
        make("torch"),
        lambda sequences, round_: tasks_for(sequences, round_, limits, samplings, blind),
        shape,
        VOCABULARY,
        len(limits),
        rounds,
    )


@pytest.fixture
def _no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if the device leaves trees to the reference growth. Blocks of logits are narrow, for speed."""
    monkeypatch.setattr(growth, "MIN_WIDTH", 8)

    def refuse(self: ModelRunner, *arguments: Any) -> bool:
        assert growth.can_grow(*arguments[1:])
        return True

    monkeypatch.setattr(ModelRunner, "_grows", refuse)


@pytest.mark.usefixtures("_no_reference")
@pytest.mark.parametrize("beam", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_greedy_trees_are_those_of_the_reference(beam: int) -> None:
    """Trees of different sizes grow in one batch, one of them empty; the second round uses the cache."""
    pairs = grow_both(GrowthShape(beam=beam), LIMITS, [GREEDY] * 4, rounds=1 if beam == 1 else 2)
    for actual, expected in pairs:
        assert_same(actual, expected)
    assert [len(actual) for actual, _ in pairs[:4]] == [13, 2, 1, 31]
    assert len(pairs) == 8 or beam == 1


@pytest.mark.usefixtures("_no_reference")
def test_trees_of_one_level_need_no_pass_over_nodes() -> None:
    limits = [TreeLimits(3, 1), TreeLimits(1, 1)]
    for actual, expected in grow_both(GrowthShape(beam=2), limits, [GREEDY, NOISY]):
        assert_same(actual, expected)


@pytest.mark.usefixtures("_no_reference")
def test_trees_of_sampled_requests_are_those_of_the_reference() -> None:
    """Requests with noise, top-k, top-p, and a greedy one share a batch; then requests whose noise is hidden."""
    limits = [TreeLimits(9, 3), TreeLimits(20, 3), TreeLimits(5, 5), TreeLimits(6, 2)]
    for actual, expected in grow_both(GrowthShape(beam=2), limits, [NOISY, CUT, NUCLEUS, GREEDY]):
        assert_same(actual, expected)
    for actual, expected in grow_both(GrowthShape(beam=2), limits[:2], [GREEDY] * 2, blind=1.2):
        assert_same(actual, expected)


@pytest.mark.thorough
@pytest.mark.usefixtures("_no_reference")
def test_trees_that_stop_at_improbable_paths_and_chains_are_those_of_the_reference() -> None:
    limits = [
        TreeLimits(12, 4, min_path_probability=0.3),
        TreeLimits(30, 3, min_path_probability=0.02),
        TreeLimits(9, 2),
    ]
    shape = GrowthShape(beam=2, min_path_probability=0.03)
    pairs = grow_both(shape, limits, [GREEDY, NOISY, GREEDY])
    chains = grow_both(shape, [TreeLimits(n, n, width=1) for n in (1, 4, 2)], [GREEDY, NOISY, GREEDY])
    for actual, expected in [*pairs, *chains]:
        assert_same(actual, expected)
    free = grow_both(GrowthShape(beam=2), [TreeLimits(12, 4)], [GREEDY])
    assert free[0][0].parents.tolist() != pairs[0][0].parents.tolist(), (
        "the limit of path probability has an effect"
    )


def test_draws_and_expansion_vectors_use_the_reference_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drawn = GrowthShape(beam=2, kind=ProposalKind.WITHOUT_REPLACEMENT, q_support=8)
    vector = GrowthShape(ExpansionVector((2, 1)))
    for shape, wanted in ((drawn, "without_replacement"), (vector, "widths=(2, 1)")):
        with caplog.at_level(logging.WARNING):
            pairs = grow_both(shape, [TreeLimits(5, 2)], [NOISY])
        assert_same(*pairs[0])
        assert "gpu executor does not grow such trees" in caplog.text
        assert wanted in caplog.text


def test_trees_too_large_for_one_program_use_the_reference() -> None:
    def fits(beam: int, nodes: int, depth: int) -> bool:
        task = GrowthTask(KVSequence(), [1], TreeLimits(nodes, depth), GREEDY)
        return growth.can_grow([task], GrowthShape(beam=beam))

    assert fits(4, 256, 8)
    assert fits(8, 64, 33)
    assert not fits(8, 64, 34), "more nodes than a mask has bits"
    assert not fits(32, 256, 3), "more candidates than one program supports"
