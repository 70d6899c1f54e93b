"""Synthetic acceptance: lengths follow the histogram, and no rule outside benchmarks can draw them."""

from collections import Counter
from pathlib import Path

import pytest
from scipy.stats import chisquare

from benchmarks.synthetic import (
    GREEDY_32,
    RULE_NAME,
    AcceptanceHistogram,
    synthetic_rule,
    synthetic_rules,
    verify_synthetic,
)
from specinfer.errors import SettingError
from specinfer.request.sampling import Sampling
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.verification.acceptance import RULES, RequestRandomness, find_rule
from tests.unit.verification.test_acceptance import TableTarget

HISTOGRAM = AcceptanceHistogram("test", (40, 25, 0, 20, 15))
DRAWS = 4000
ROOT = Path(__file__).resolve().parents[3]


def chain(*tokens: int) -> TokenTree:
    """Return a tree with one wrong child of the root, and a path of these tokens."""
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
    """Return the p-value of Pearson's test of the lengths against the counts; lengths without a count must not
    occur."""
    seen = Counter(lengths)
    assert not any(seen[i] for i, count in enumerate(counts) if not count)
    cells = [i for i, count in enumerate(counts) if count]
    expected = [len(lengths) * counts[i] / sum(counts) for i in cells]
    return float(chisquare([seen[i] for i in cells], expected).pvalue)


@pytest.mark.statistical
def test_drawn_lengths_follow_the_histogram() -> None:
    """Chi-square, 3 degrees of freedom: probability 1e-6 of a false alarm for each of three seeds.

    The negative control moves a few per cent of the steps to another length, and is detected with all three seeds.
    """
    lengths = [drawn_lengths(HISTOGRAM, seed) for seed in (1, 2, 3)]
    assert all(p_value(length, HISTOGRAM.counts) > 1e-6 for length in lengths)
    assert p_value([n for length in lengths for n in length], (34, 31, 0, 20, 15)) < 1e-6


def test_only_a_benchmark_draws_lengths() -> None:
    before = dict(RULES)
    assert not any("synthetic" in text for pair in RULES.items() for text in pair)
    with synthetic_rules(GREEDY_32):
        assert {find_rule(name) for name in (*before, RULE_NAME)} == {verify_synthetic}
        verify_synthetic(chain(5), target(3), RequestRandomness(Sampling(), 1))
    assert before == RULES
    with pytest.raises(SettingError, match="greedy, multi_step"):
        find_rule("synthetic")
