"""EAGLE's trees grown in one compiled call equal those of the layer in torch, node for node."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from specinfer.drafters.eagle import EagleRunner
from specinfer.errors import SettingError
from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.stack import DraftStack, DraftWeights, RowsTask
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.loading import backend_and_weights
from specinfer.model.native.eagle_layer import NativeEagle
from specinfer.model.native.executor import pass_of
from specinfer.model.options import RunnerOptions, torch_dtype
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import EMBEDDING, in_llama_names
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.training.eagle_student import starting_tensors
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits
from tests.support.models.growth_rounds import assert_same, contexts
from tests.support.tiny_models import tiny_transformers

pytestmark = pytest.mark.native

FAMILIES = ("llama", "llama-biased", "llama-rope3", "qwen3")
OTHER_FAMILIES = ("gemma", "gemma2", "gemma3", "phi3", "smollm3", "granite", "olmo2", "olmo3")
LAYERS, HIDDEN = 3, 96
TOKENS = 512
VOCABULARY = torch.arange(5, 85)[torch.randperm(80, generator=torch.Generator().manual_seed(4))]
"""Draft token -> target token; not ascending, so that confusing the two shows."""
LIMITS = [TreeLimits(12, 5), TreeLimits(1, 1), TreeLimits(0, 4), TreeLimits(30, 3), TreeLimits(9, 7)]
CHAINS = [TreeLimits(depth, depth, width=1) for depth in (1, 2, 5, 8, 3)]
SAMPLED = Sampling(temperature=0.8, seed=11)
CUT = Sampling(temperature=1.3, top_k=20, top_p=0.8, seed=4)
SUMS = 2e-3
"""Tolerance of scores: sums of float32 in another order differ, and errors grow with each level."""
POINT, WITHOUT = ProposalKind.POINT, ProposalKind.WITHOUT_REPLACEMENT


def weights_of(family: str = "llama", residual_normed: bool = False) -> DraftWeights:
    """Return random weights, so that the token one ahead and all hidden states matter."""
    model = tiny_transformers(family, head_dim=32, hidden_size=HIDDEN, intermediate_size=152)
    config = replace(from_transformers(model.config), logit_cap=30.0 * (family == "gemma2"))
    weights = in_llama_names(config, model.state_dict())
    tensors = starting_tensors(config, weights, LAYERS, VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    noisy = {n: t + 0.2 * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}
    layer_config = replace(config.draft_layer(), vocab_size=len(VOCABULARY))
    noisy[EMBEDDING] = weights[EMBEDDING]
    return DraftWeights(layer_config, noisy, norm_before_residual=residual_normed)


class CompiledPasses:
    """Runs the compiled layer pass by pass for the reference growth, so that trees are equal in every type."""

    def __init__(self, layer: NativeEagle) -> None:
        self._layer, self._logits = layer, torch.empty(0)

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        return states.contiguous()

    def run(self, batch: Batch, read: torch.Tensor) -> torch.Tensor:
        layer, rows = self._layer, len(batch.token_ids)
        outs, one = torch.empty(rows, layer.config.hidden_size), np.array([1], np.int32)
        self._logits = torch.empty(len(batch.logit_rows), layer.config.vocab_size)
        call, _numbers = pass_of(batch)
        layer.memory.put(call)
        if read.dim() == 3:
            call.states = read.data_ptr()
        else:
            call.hidden = read.data_ptr()
        call.logits_out, call.threads, call.end_layer = self._logits.data_ptr(), 2, 1
        call.features, call.feature_layers, call.features_out = 1, one.ctypes.data, outs.data_ptr()
        layer.model.library.si_forward(layer.model.address, ctypes.byref(call))
        return outs

    def logits(self, _: torch.Tensor) -> torch.Tensor:
        return self._logits


def compiled(weights: DraftWeights, dtype: str = "float32") -> EagleRunner:
    return EagleRunner.build(weights, native_options(dtype))


def native_options(dtype: str) -> RunnerOptions:
    if dtype == "q8_0":
        return RunnerOptions(executor="native", weights="q8_0", kv_tokens=TOKENS)
    return RunnerOptions(dtype, executor="native", kv_tokens=TOKENS)


def in_torch(weights: DraftWeights) -> EagleRunner:
    return EagleRunner.build(weights, RunnerOptions(dtype="float32", executor="torch", kv_tokens=TOKENS))


def by_passes(weights: DraftWeights, dtype: str) -> EagleRunner:
    options, blocks = native_options(dtype), TOKENS // 16
    _, layer_weights = backend_and_weights(weights.config, weights.tensors, options)
    layer = NativeEagle(weights, layer_weights, torch_dtype(options.dtype), blocks, options.kv_type)
    return EagleRunner(cast(DraftStack, CompiledPasses(layer)), blocks)


def tasks_for(
    sequences: list[KVSequence],
    round_: int,
    limits: list[TreeLimits],
    sampling: Sampling,
    blind: float | None,
    hidden: int = HIDDEN,
) -> list[RowsTask]:
    """Return the tasks of a round, with hidden states of the target for the new tokens."""
    generator = torch.Generator().manual_seed(round_)
    tasks = []
    for sequence, delta, limit in zip(sequences, contexts(round_), limits, strict=True):
        states = torch.randn((len(delta), LAYERS, hidden), generator=generator).to(torch.bfloat16)
        tasks.append(RowsTask(GrowthTask(sequence, delta, limit, sampling, blind, offset=1), states))
    return tasks


def grow_both(
    weights: DraftWeights,
    shape: GrowthShape,
    limits: list[TreeLimits],
    sampling: Sampling,
    reference: Callable[[DraftWeights], EagleRunner] = in_torch,
    dtype: str = "float32",
    blind: float | None = None,
) -> list[tuple[TokenTree, TokenTree]]:
    """Return (compiled, reference) trees of two rounds of drafting, on two caches."""
    runners = compiled(weights, dtype), reference(weights)
    sequences = [[runner.cache.open() for _ in limits] for runner in runners]
    pairs: list[tuple[TokenTree, TokenTree]] = []
    for round_ in range(2):
        grown = []
        for runner, owned in zip(runners, sequences, strict=True):
            tasks = tasks_for(owned, round_, limits, sampling, blind, weights.config.hidden_size)
            for item in tasks:
                rows = len(item.task.delta) + shape.scored_nodes(item.task.limits)
                runner.cache.reserve(item.task.sequence, rows)
            grown.append(runner.grow(tasks, shape, VOCABULARY))
            runner.cache.check()
        pairs += zip(*grown, strict=True)
    return pairs


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
@pytest.mark.parametrize("residual_normed", [False, True])
def test_trees_are_those_of_the_layer_in_torch(family: str, residual_normed: bool) -> None:
    pairs = grow_both(weights_of(family, residual_normed), GrowthShape(), LIMITS, GREEDY)
    for actual, expected in pairs:
        assert_same(actual, expected, SUMS)
    trees = [actual for actual, _ in pairs]
    assert [len(tree) - 1 for tree in trees] == [limits.nodes for limits in LIMITS] * 2
    assert max(len(tree.path_to(n)) for tree in trees for n in range(len(tree))) >= 4
    assert len({tuple(tree.token_ids[1:3].tolist()) for tree in trees if len(tree) > 2}) > 5


@pytest.mark.parametrize(
    ("shape", "limits", "sampling", "blind"),
    [
        (GrowthShape(), LIMITS, SAMPLED, None),
        (GrowthShape(), LIMITS, CUT, None),
        (GrowthShape(), LIMITS, GREEDY, 0.8),
        (GrowthShape(kind=WITHOUT, q_support=24), LIMITS, SAMPLED, None),
        (GrowthShape(kind=WITHOUT, q_support=24), LIMITS, CUT, None),
        (GrowthShape(kind=ProposalKind.WITH_REPLACEMENT), LIMITS, SAMPLED, None),
        (GrowthShape(), CHAINS, GREEDY, None),
        (GrowthShape(kind=WITHOUT), CHAINS, SAMPLED, None),
        (GrowthShape(ExpansionVector((2, 1, 3, 1))), LIMITS, GREEDY, None),
        (GrowthShape(min_path_probability=0.1), LIMITS, GREEDY, None),
        (GrowthShape(beam=1), LIMITS, GREEDY, None),
    ],
)
def test_points_noise_and_draws_are_those_of_the_layer_in_torch(
    shape: GrowthShape, limits: list[TreeLimits], sampling: Sampling, blind: float | None
) -> None:
    for actual, expected in grow_both(weights_of(), shape, limits, sampling, blind=blind):
        assert_same(actual, expected, SUMS)


@pytest.mark.parametrize("dtype", ["bfloat16", "q8_0"])
@pytest.mark.parametrize("kind", [POINT, WITHOUT])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_whole_draft_equals_its_passes(dtype: str, kind: ProposalKind, sampling: Sampling) -> None:
    """In these formats the layer in torch would round differently, so the reference uses compiled passes."""
    weights = weights_of()

    def reference(weights: DraftWeights) -> EagleRunner:
        return by_passes(weights, dtype)

    for actual, expected in grow_both(weights, GrowthShape(kind=kind), LIMITS, sampling, reference, dtype):
        assert_same(actual, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "q8_0"])
def test_guesses_in_few_bits_are_near_those_in_float32(dtype: str) -> None:
    """The total variation distance of first guesses from float32 is small on average."""
    distances = []
    for actual, expected in grow_both(
        weights_of(), GrowthShape(), [TreeLimits(40, 1)] * 5, GREEDY, dtype=dtype
    ):
        ours = dict(zip(actual.token_ids[1:].tolist(), actual.scores[1:], strict=True))
        theirs = dict(zip(expected.token_ids[1:].tolist(), expected.scores[1:], strict=True))
        common = ours.keys() & theirs.keys()
        assert len(common) > 35
        distances.append(sum(abs(ours[token] - theirs[token]) for token in common) / 2)
    assert sum(distances) / len(distances) < (0.02 if dtype == "bfloat16" else 0.1)


def test_a_batch_does_not_change_its_members() -> None:
    weights, shape = weights_of(), GrowthShape()
    together = grow_both(weights, shape, LIMITS, SAMPLED, dtype="bfloat16")
    for index in range(len(LIMITS)):
        alone = compiled(weights, "bfloat16")
        item = tasks_for([alone.cache.open() for _ in LIMITS], 0, LIMITS, SAMPLED, None)[index]
        rows = len(item.task.delta) + shape.scored_nodes(item.task.limits)
        alone.cache.reserve(item.task.sequence, rows)
        (tree,) = alone.grow([item], shape, VOCABULARY)
        assert_same(together[index][0], tree)


def test_what_cannot_run_is_refused() -> None:
    weights = weights_of()
    for options, reason in (
        (RunnerOptions(executor="gpu"), "must be native, torch or auto for an EAGLE layer"),
        (RunnerOptions(dtype="float16", executor="native"), "float32 and bfloat16 are supported"),
    ):
        with pytest.raises(SettingError, match=reason):
            EagleRunner.build(weights, options)
