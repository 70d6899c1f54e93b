"""A model on several ranks gives the answers of one rank, with and without trees."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.parallel import stage
from specinfer.model.parallel.layout import Layout, RankMemory
from specinfer.model.parallel.ranks import LOST_GROUP, Ranks
from specinfer.model.parallel.stage import StageCost
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import GREEDY
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.models.rank_group import exit_codes, ranks_of, run_ranks
from tests.support.tiny_models import runner_of, tiny_transformers

FAMILIES = {
    Layout(2, 1): ("llama-biased", "qwen3"),
    Layout(4, 1): ("llama", "gpt_neox"),
    Layout(1, 3): ("llama", "opt"),
    Layout(2, 2): ("llama-untied", "opt"),
}
"""Families per layout: every kind of layer is divided once; another family takes a second or two."""
PROMPTS = [[5, 17, 3, 44, 9], [81, 2, 60], [33, 33, 7, 12, 90, 41, 6, 18]]
"""Prompts with different answers."""
COUNT = 12
CUT = StageCost(fixed_s=0.0, each_s=1.0)
"""Cost without a fixed part, for which passes are cut as often as possible."""
FEATURES = (0, 1, 3)
CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}
CLOSE_BFLOAT16: dict[str, Any] = {"atol": 2e-2, "rtol": 2e-2}


class Answers(NamedTuple):
    plain: list[list[int]]
    trees: list[list[int]]
    steps: int
    """Number of steps with trees."""
    logits: NDArray[np.float32]
    """[tokens of the longest prompt, V]"""
    features: NDArray[np.float32]
    """[tokens, features, hidden]"""
    memory: list[RankMemory]


@cache
def model_of(family: str) -> Any:
    return tiny_transformers(family, vocab_size=96, num_key_value_heads=2)


class Model(NamedTuple):
    """Model as sent to the ranks, which need not import `transformers`."""

    config: ModelConfig
    weights: dict[str, NDArray[np.float32]]
    executor: str = "auto"

    @classmethod
    def of(cls, family: str, executor: str = "auto") -> "Model":
        model = model_of(family)
        weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        return cls(from_transformers(model.config), weights, executor)

    def runner(self, ranks: Ranks) -> ModelRunner:
        weights = {name: torch.from_numpy(array) for name, array in self.weights.items()}
        options = RunnerOptions(dtype="float32", executor=self.executor, kv_tokens=1024)
        return ModelRunner.build(self.config, weights, options, ranks)


def answer(runner: ModelRunner, known: Sequence[Sequence[int]] | None = None) -> Answers:
    """Return greedy answers without drafts, and with trees from `known` or from those."""
    engine = VerifierEngine(runner)
    plain, _ = decode(engine, None)
    trees, steps = decode(engine, known or plain)
    sequence = runner.open()
    segment = Segment(sequence, PROMPTS[2][:1], PROMPTS[2][1:], range(-1, len(PROMPTS[2]) - 2), True)
    (logits,), (features,) = runner.forward_with_features([segment], FEATURES)
    runner.cache.release(sequence)
    memory = runner.parallel.memory if runner.parallel else []
    return Answers(plain, trees, steps, logits.numpy(), features.float().numpy(), memory)


def decode(engine: VerifierEngine, known: Sequence[Sequence[int]] | None) -> tuple[list[list[int]], int]:
    """Return COUNT tokens after each prompt, decoded in one batch, and the number of steps."""
    texts, steps = [list(prompt) for prompt in PROMPTS], 0
    cached_lens = [0] * len(texts)
    while min(len(text) - len(prompt) for text, prompt in zip(texts, PROMPTS, strict=True)) < COUNT:
        jobs = [
            VerifyJob(
                str(n),
                cached_lens[n],
                text[cached_lens[n] :],
                draft(text, PROMPTS[n], known and known[n]),
                GREEDY,
            )
            for n, text in enumerate(texts)
        ]
        for n, outcome in enumerate(engine.verify(jobs)):
            tree = jobs[n].tree
            assert tree is not None
            cached_lens[n] = outcome.cached_len
            texts[n] += [
                *(int(tree.token_ids[node]) for node in outcome.accepted),
                outcome.bonus,
            ]
        steps += 1
    engine.release([str(n) for n in range(len(texts))])
    return [text[len(prompt) :][:COUNT] for text, prompt in zip(texts, PROMPTS, strict=True)], steps


def draft(text: Sequence[int], prompt: Sequence[int], known: Sequence[int] | None) -> TokenTree:
    """Draft two known tokens, each after a wrong sibling, so that their keys must be moved."""
    builder = TreeBuilder(text[-1])
    following = list(known or ())[len(text) - len(prompt) :][:2]
    node = 0
    for token in following:
        _, node = builder.propose_points(node, [(token + 1) % 96, token], [0.5, 0.4])
    return builder.build()


def run_rank(ranks: Ranks, models: Mapping[str, Model]) -> dict[str, Answers]:
    answers = {}
    for family, model in models.items():
        runner = model.runner(ranks)
        parallel = runner.parallel
        assert parallel is not None
        if ranks.place.rank:
            parallel.follow()
            continue
        whole = answer(runner)
        parallel.cost = CUT
        in_parts = answer(runner, whole.plain)
        assert (in_parts.plain, in_parts.trees) == (whole.plain, whole.trees)
        np.testing.assert_allclose(in_parts.logits, whole.logits, **CLOSE)
        np.testing.assert_allclose(in_parts.features, whole.features, **CLOSE_BFLOAT16)
        parallel.beat()
        parallel.stop()
        answers[family] = whole
        if ranks.place.layout.stages > 1:
            assert 0 < parallel.stage_seconds.bubble < 1
    return answers


@pytest.fixture(scope="module")
def alone() -> dict[str, Answers]:
    families = {family for group in FAMILIES.values() for family in group}
    return {family: answer(runner_of(model_of(family))) for family in families}


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def group(request: pytest.FixtureRequest) -> tuple[Layout, dict[str, Answers]]:
    models = {family: Model.of(family) for family in FAMILIES[request.param]}
    return request.param, run_ranks(request.param, run_rank, models)


def test_several_ranks_give_the_answers_of_one(
    group: tuple[Layout, dict[str, Answers]], alone: dict[str, Answers]
) -> None:
    _, answers = group
    for family, many in answers.items():
        one = alone[family]
        assert many.plain == one.plain == one.trees == many.trees
        assert many.steps == one.steps < COUNT * 0.7, "trees were accepted, in equal numbers"
        np.testing.assert_allclose(many.logits, one.logits, **CLOSE)
        np.testing.assert_allclose(many.features, one.features, **CLOSE_BFLOAT16)
    assert len({tuple(row) for row in alone["llama"].plain}) == len(PROMPTS), "the prompts differ"


def logits_of_rank(ranks: Ranks, model: Model) -> tuple[str, NDArray[np.float32], NDArray[np.float32]] | None:
    """Return the executor's name, and logits and hidden states of a tree after a prompt; rank 0 only."""
    stage._MEASURED_TOKENS, stage._ROUNDS = 2, 1  # the interpreter is slow
    runner = model.runner(ranks)
    assert runner.parallel is not None
    if ranks.place.rank:
        runner.parallel.follow()
        return None
    found = tree_pass(runner)
    runner.parallel.stop()
    return runner.executor_name, *found


def tree_pass(runner: ModelRunner) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    sequence = runner.open()
    runner.forward([Segment(sequence, PROMPTS[2])])
    segment = Segment(sequence, PROMPTS[0][:2], PROMPTS[0][2:], [-1, -1, 0], True)
    (logits,), (features,) = runner.forward_with_features([segment], FEATURES)
    return logits.numpy(), features.float().numpy()


@pytest.mark.parametrize(("layout", "family"), [(Layout(2, 1), "llama-biased"), (Layout(1, 2), "qwen3")])
def test_ranks_of_the_gpu_executor_compute_the_pass_of_one(layout: Layout, family: str) -> None:
    """Kernels run in Triton's interpreter, collectives over gloo."""
    name, logits, features = run_ranks(layout, logits_of_rank, Model.of(family, "gpu"))
    expected, expected_features = tree_pass(runner_of(model_of(family)))
    assert name == "gpu"
    np.testing.assert_allclose(logits, expected, **CLOSE)
    np.testing.assert_allclose(features, expected_features, **CLOSE_BFLOAT16)


def lose(ranks: Ranks, model: Model, how: str, who: int) -> None:
    """Run a rank; rank `who` dies or hangs."""
    runner = model.runner(ranks)
    assert runner.parallel is not None
    if ranks.place.rank == who:
        if how == "dies":
            os._exit(9)
        time.sleep(3600)
    if ranks.place.rank:
        runner.parallel.follow()
    answer(runner)


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_ends_all_at_once(who: int) -> None:
    """The ranks' timeout is an hour; `exit_codes` waits less."""
    codes = [LOST_GROUP] * 3
    codes[who] = 9
    assert exit_codes(Layout(1, 3), 3600.0, lose, Model.of("llama"), "dies", who) == codes


def test_a_rank_that_hangs_ends_all() -> None:
    with ranks_of(Layout(2), 5.0, lose, (Model.of("llama"), "hangs", 1)) as (processes, _):
        processes[0].join(240)
        assert processes[1].is_alive()
        assert processes[0].exitcode == LOST_GROUP
