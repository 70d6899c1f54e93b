"""Figure 11 of the paper: tree and sequence verification accept the same tokens; figures follow from times."""

import pytest
import torch

from benchmarks.paper.sequences import (
    Comparison,
    MeasuredSteps,
    accepted_of_sequences,
    accepted_of_tree,
)
from benchmarks.prompts import EvaluationPrompt
from specinfer.drafters import DrafterDescription
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import ExpansionVector, TreeBuilder, TreeLimits
from tests.support.tiny_models import runner_of, tiny_transformers

ABOUT = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
PROMPTS = [
    EvaluationPrompt("a", (5, 17, 3)),
    EvaluationPrompt("b", (41, 9)),
    EvaluationPrompt("a", (60, 2, 71, 33)),
]


def test_both_ways_accept_the_tokens_of_the_target() -> None:
    builder = TreeBuilder(1)
    cat = builder.add(0, 3)
    builder.add(cat, 4)
    builder.add(0, 5)
    tree = builder.build()
    wanted = {0: 3, 1: 4, 2: 7, 3: 8}
    logits = torch.zeros(len(tree), 9)
    for node, token in wanted.items():
        logits[node, token] = 1.0
    assert accepted_of_tree(tree, logits) == ([1, 2], [3, 4, 7])
    rows = [logits[[0, 1, 2]], logits[[0, 3]]]
    assert accepted_of_sequences([[3, 4], [5]], rows) == [3, 4, 7]


def test_a_tree_and_its_sequences_give_the_same_tokens_and_leave_the_cache_empty() -> None:
    target, drafts = tiny_transformers("llama", seed=3), tiny_transformers("llama", seed=4)
    for model in (target, drafts):
        runner = runner_of(target)
        shape = GrowthShape(ExpansionVector((2, 2, 1)))
        drafter = SsmDrafter(runner_of(model), DrafterDescription("ssm", 97), shape)
        steps = MeasuredSteps()
        Comparison(runner, drafter, TreeLimits(10, 3)).run(PROMPTS, 4, steps)
        assert steps.sequence_rows == 4 * 3 * 4 * 4, (
            "four leaves of a root and three nodes, by request and step"
        )
        assert steps.tree_rows == 4 * 3 * 11
        assert steps.tokens == (48 if model is target else steps.tokens)
        assert len(steps.tree_s) == len(steps.sequences_s) == len(steps.draft_s) == 4
        assert runner.cache.free_tokens == runner.cache.capacity_tokens
        again = Comparison(runner, drafter, TreeLimits(10, 3)).measure(PROMPTS, 1, 2)
        assert len(again.tree_s) == 3 * 2, "each prompt is a batch of its own"


def test_the_figures_of_a_batch_follow_from_its_times() -> None:
    """Two steps of two requests gave eight tokens: four steps of a request, each two tokens."""
    measured = MeasuredSteps(
        [0.01, 0.03], [0.02, 0.03], [0.004, 0.004], tokens=8, tree_rows=44, sequence_rows=64
    )
    report = measured.report(2)
    assert report["tree_ms"] == pytest.approx(1000 * 0.04 / 4)
    assert report["sequences_ms"] == pytest.approx(1000 * 0.05 / 4)
    assert report["pass_ratio"] == pytest.approx(1.25)
    assert report["pass_ratio_error"] == pytest.approx(0.5)
    assert report["ratio_with_drafts"] == pytest.approx(0.058 / 0.048)
    assert report["rows"] == {"tree": 22, "sequences": 32}
