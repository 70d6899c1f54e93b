"""Figures 7 and 11: what is compared is the same, and figures follow from the times."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.drafts.prompts import EvaluationPrompt
from benchmarks.figures.figure11 import mixed
from benchmarks.figures.latency import INCREMENTAL, SEQUENCE, TREE, Turns
from benchmarks.figures.report import latency_report, plot_latency, plot_sequences, sequences_report
from benchmarks.figures.sequences import (
    Comparison,
    MeasuredSteps,
    accepted_of_sequences,
    accepted_of_tree,
    paths,
)
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


def test_sequences_of_a_tree_are_its_paths_to_the_leaves() -> None:
    builder = TreeBuilder(1)
    cat, dog = builder.add(0, 10), builder.add(0, 20)
    builder.add(cat, 11), builder.add(cat, 12)
    assert sorted(paths(builder.build())) == [[10, 11], [10, 12], [20]]
    assert dog


def test_both_ways_accept_what_the_target_says() -> None:
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


def test_a_tree_and_its_sequences_bring_the_same_and_leave_the_cache_empty() -> None:
    target, drafts = tiny_transformers("llama", seed=3), tiny_transformers("llama", seed=4)
    for model in (target, drafts):
        runner = runner_of(target)
        shape = GrowthShape(ExpansionVector((2, 2, 1)))
        drafter = SsmDrafter(runner_of(model), DrafterDescription("ssm", 97), shape)
        found = MeasuredSteps()
        Comparison(runner, drafter, TreeLimits(10, 3)).run(PROMPTS, 4, found)
        assert found.sequence_rows == 4 * 3 * 4 * 4, (
            "four leaves of a root and three nodes, by request and step"
        )
        assert found.tree_rows == 4 * 3 * 11
        assert found.tokens == (48 if model is target else found.tokens)
        assert len(found.tree_s) == len(found.sequences_s) == len(found.draft_s) == 4
        assert runner.cache.free_tokens == runner.cache.capacity_tokens
        again = Comparison(runner, drafter, TreeLimits(10, 3)).measure(PROMPTS, 1, 2)
        assert len(again.tree_s) == 3 * 2, "each prompt is a batch of its own"


def test_the_figures_of_a_batch_follow_from_its_times() -> None:
    """Batch 2, two steps that brought eight tokens: a request waits a step for two of its own."""
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


def test_gains_are_over_incremental_decoding_of_the_same_turn() -> None:
    incremental, tree = Turns([20.0, 10.0]), Turns([10.0, 10.0], steps=10, accepted=15)
    cell = tree.beside(incremental)
    assert cell["mean_ms"] == 10
    assert cell["gain"] == pytest.approx(1.5)
    assert cell["gain_error"] == pytest.approx(0.5)
    assert cell["tokens_per_step"] == 2.5


def test_reports_and_plots_have_every_batch_beside_the_paper(tmp_path: Path) -> None:
    turns = Turns([20.0, 10.0], steps=4, accepted=4)
    modes = {mode: turns.beside(turns) for mode in (INCREMENTAL, SEQUENCE, TREE)}
    seven: dict[str, Any] = {"about": ABOUT, "model": "m", "prompts": 1, "new_tokens": 8, "turns": 2}
    seven |= {"sequence_length": 5, "batches": {"1": modes, "16": modes}}
    lines = latency_report(seven, "p.png").splitlines()
    assert "| ms per token of a request | batch 1 | batch 16 |" in lines
    assert "| tree | 15.0 [10.0, 20.0] | 15.0 [10.0, 20.0] |" in lines
    assert "| tree over sequence | 1.2x to 1.5x | 1.00x to 1.00x |" in lines
    one = MeasuredSteps([0.01], [0.02], [0.001], tokens=4, tree_rows=11, sequence_rows=16).report(1)
    eleven = {"about": ABOUT, "model": "m", "shapes": {"<2,2,1>": {"1": one, "4": one}}}
    lines = sequences_report(eleven, "p.png").splitlines()
    assert "| sequences / tree, passes | 2.00x ± 0.00 | 2.00x ± 0.00 |" in lines
    paper = "on par at small batches, up to 1.8x at large ones"
    assert f"| sequences / tree, latency per token | {paper} | 1.91x to 1.91x |" in lines
    plot_latency(tmp_path / "7.png", seven)
    plot_sequences(tmp_path / "11.png", eleven)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("7.png", "11.png"))


def test_sources_take_turns() -> None:
    assert [prompt.source for prompt in mixed(PROMPTS)] == ["a", "b", "a"]
