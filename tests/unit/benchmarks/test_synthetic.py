"""Synthetic acceptance: it follows its histogram, repeats itself, and is nowhere but in benchmarks."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import chisquare

from benchmarks.synthetic.histogram import WARNING, AcceptanceHistogram, mark, measured
from benchmarks.synthetic.rule import (
    HISTOGRAM_VARIABLE,
    RULE_NAME,
    _rule_of,
    deepest_path,
    synthetic_rule,
    synthetic_rules,
    verify_synthetic,
)
from specinfer.errors import InvalidInputError, SettingError
from specinfer.sampling import Sampling
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.acceptance import RULES, RequestRandomness, find_rule
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.verification.test_acceptance import TableTarget

HISTOGRAM = AcceptanceHistogram("test", (40, 25, 0, 20, 15))
DRAWS = 4000
ROOT = Path(__file__).resolve().parents[3]


def chain(*tokens: int) -> TokenTree:
    """A branch of one node, then a path of the rest."""
    builder = TreeBuilder(1)
    (_, node) = builder.propose_points(0, [96, tokens[0]], [0.5, 0.5])
    for token in tokens[1:]:
        (node,) = builder.propose_points(node, [token], [0.5])
    return builder.build()


def target(nodes: int) -> TableTarget:
    return TableTarget({node: {100 + node: 1.0} for node in range(nodes)})


def drawn_lengths(histogram: AcceptanceHistogram, seed: int) -> list[int]:
    rule, tree = synthetic_rule(histogram), chain(5, 6, 7, 8, 9)
    return [
        len(rule(tree, target(len(tree)), RequestRandomness(Sampling(seed=seed), position)).accepted)
        for position in range(DRAWS)
    ]


def p_value(lengths: list[int], counts: tuple[int, ...]) -> float:
    """Return the p-value of Pearson's test that the lengths follow the counts; cells of no count must be empty."""
    seen = Counter(lengths)
    assert not any(seen[i] for i, count in enumerate(counts) if not count)
    cells = [i for i, count in enumerate(counts) if count]
    expected = [len(lengths) * counts[i] / sum(counts) for i in cells]
    return float(chisquare([seen[i] for i in cells], expected).pvalue)


@pytest.mark.statistical
def test_drawn_lengths_follow_the_histogram() -> None:
    """False-alarm probability 1e-6 for each of three seeds (chi-square, 3 degrees of freedom); the control,
    where one step in fifty is counted elsewhere, is found with all of them together."""
    lengths = [drawn_lengths(HISTOGRAM, seed) for seed in (1, 2, 3)]
    assert all(p_value(found, HISTOGRAM.counts) > 1e-6 for found in lengths)
    assert p_value([n for found in lengths for n in found], (34, 31, 0, 20, 15)) < 1e-6


def test_a_request_has_the_same_lengths_again_and_another_seed_has_others() -> None:
    assert drawn_lengths(HISTOGRAM, 7)[:200] == drawn_lengths(HISTOGRAM, 7)[:200]
    assert drawn_lengths(HISTOGRAM, 7)[:200] != drawn_lengths(HISTOGRAM, 8)[:200]


def test_accepted_nodes_are_the_deepest_path_and_the_bonus_is_the_targets() -> None:
    tree = chain(5, 6, 7)
    assert [int(tree.token_ids[node]) for node in deepest_path(tree)] == [5, 6, 7]
    always = synthetic_rule(AcceptanceHistogram("two", (0, 0, 1)))
    verdict = always(tree, target(len(tree)), RequestRandomness(Sampling(), 10))
    assert [int(tree.token_ids[node]) for node in verdict.accepted] == [5, 6]
    assert verdict.bonus == 100 + verdict.accepted[-1]
    longer = synthetic_rule(AcceptanceHistogram("nine", (*[0] * 9, 1)))
    assert len(longer(tree, target(len(tree)), RequestRandomness(Sampling(), 10)).accepted) == 3
    root = TokenTree.root_only(4)
    assert longer(root, target(1), RequestRandomness(Sampling(), 10)).accepted == ()


def test_means_and_marks_come_from_the_counts() -> None:
    assert HISTOGRAM.tokens_per_step == pytest.approx(1 + (25 + 60 + 60) / 100)
    marked = mark(HISTOGRAM)
    assert marked["warning"] == WARNING
    assert marked["counts"] == [40, 25, 0, 20, 15]
    with pytest.raises(InvalidInputError, match="counts"):
        AcceptanceHistogram("none", (0, 0))


def test_the_committed_histograms_are_those_of_real_drafts() -> None:
    means = [measured(f"greedy, {nodes} nodes").tokens_per_step for nodes in (8, 16, 32, 64)]
    assert means == sorted(means), "larger trees bring more"
    assert 1.5 < means[0] < means[-1] < 6
    with pytest.raises(InvalidInputError, match="greedy, 16 nodes"):
        measured("greedy, 17 nodes")


def test_the_services_do_not_offer_it() -> None:
    assert not any("synthetic" in text for pair in RULES.items() for text in pair)
    with pytest.raises(SettingError, match="must be one of greedy, multi_step, naive, traversal"):
        find_rule("synthetic")


def run(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_service_refuses_it_and_a_benchmark_needs_a_histogram() -> None:
    refused = run("verifier_svc", "--acceptance", "synthetic", **{HISTOGRAM_VARIABLE: "greedy, 16 nodes"})
    assert refused.returncode == 2
    assert "acceptance" in refused.stderr
    without = run("benchmarks.synthetic.verifier")
    assert without.returncode == 2
    assert HISTOGRAM_VARIABLE in without.stderr


def test_rules_are_synthetic_only_within_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HISTOGRAM_VARIABLE, raising=False)
    before = dict(RULES)
    with synthetic_rules(measured("greedy, 16 nodes")):
        rules = {find_rule(name) for name in (*before, RULE_NAME)}
        assert rules == {verify_synthetic}
        verify_synthetic(chain(5), target(3), RequestRandomness(Sampling(), 1))
    assert before == RULES
    with pytest.raises(SettingError, match=HISTOGRAM_VARIABLE):
        verify_synthetic(chain(5), target(3), RequestRandomness(Sampling(), 1))


def test_an_engine_draws_its_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the model says, of greedy requests too; the cache holds what was accepted."""
    runner = runner_of(tiny_transformers("llama"))
    tree = chain(5, 6, 7, 8, 9)
    monkeypatch.setattr("benchmarks.synthetic.rule.measured", lambda name: HISTOGRAM)
    _rule_of.cache_clear()
    with synthetic_rules(HISTOGRAM):
        engine = VerifierEngine(runner, RULE_NAME)
        jobs = [VerifyJob(f"r{i}", 0, [3] * (i + 1) + [1], tree, Sampling(temperature=0)) for i in range(24)]
        outcomes = engine.verify(jobs)
    _rule_of.cache_clear()
    lengths = [len(outcome.verdict.accepted) for outcome in outcomes if outcome.verdict]
    rule = synthetic_rule(HISTOGRAM)
    wanted = [
        len(rule(tree, target(len(tree)), RequestRandomness(Sampling(), i + 2)).accepted) for i in range(24)
    ]
    assert lengths == wanted
    assert len(set(lengths)) > 1
    engine.settle()
    assert [outcome.held_len for outcome in outcomes] == [i + 2 + n for i, n in enumerate(lengths)]
