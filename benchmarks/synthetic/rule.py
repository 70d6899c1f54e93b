"""The acceptance rule: a drawn number of nodes of the deepest path, after the greedy rule's work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from benchmarks.synthetic.histogram import AcceptanceHistogram, measured
from specinfer.errors import SettingError
from specinfer.tree import TokenTree
from specinfer.verification.acceptance import RULES, AcceptanceRule, Randomness, Target, Verdict

RULE_NAME = "synthetic"
RULE = "benchmarks.synthetic.rule:verify_synthetic"

HISTOGRAM_VARIABLE = "SPECINFER_BENCHMARK_SYNTHETIC_ACCEPTANCE"
"""Names the histogram. Without it no process draws lengths."""


def synthetic_rule(histogram: AcceptanceHistogram) -> AcceptanceRule:
    """Accepts as many nodes of the deepest path as are drawn, all of them where it is shorter.

    The draw is keyed by the request's seed and the position behind the root: the same request has the same
    lengths again. The target is asked for its choice at every node on the way, as the greedy rule asks it.
    """

    def verify(tree: TokenTree, target: Target, randomness: Randomness) -> Verdict:
        path = deepest_path(tree)[: histogram.draw(randomness.stream(0))]
        choices = [target.best(node) for node in (0, *path)]
        return Verdict(path, choices[-1])

    return verify


def deepest_path(tree: TokenTree) -> tuple[int, ...]:
    """Nodes from the root's child down to the first of the deepest nodes."""
    depths = np.zeros(len(tree), int)
    for node in range(1, len(tree)):
        depths[node] = depths[tree.parents[node]] + 1
    path, node = list[int](), int(depths.argmax())
    while node:
        path.append(node)
        node = int(tree.parents[node])
    return tuple(reversed(path))


@cache
def _rule_of(name: str) -> AcceptanceRule:
    return synthetic_rule(measured(name))


def verify_synthetic(tree: TokenTree, target: Target, randomness: Randomness) -> Verdict:
    """Apply `synthetic_rule` with the histogram that the environment names.

    Raises:
        SettingError: if it names none.
    """
    name = os.environ.get(HISTOGRAM_VARIABLE)
    if not name:
        raise SettingError(HISTOGRAM_VARIABLE, "", "must name a histogram: only benchmarks draw lengths")
    return _rule_of(name)(tree, target, randomness)


@contextmanager
def synthetic_rules(histogram: AcceptanceHistogram) -> Iterator[None]:
    """Within, every acceptance rule that this process looks up is the synthetic one, greedy requests' too."""
    rules, variable = dict(RULES), os.environ.get(HISTOGRAM_VARIABLE)
    os.environ[HISTOGRAM_VARIABLE] = histogram.name
    RULES.update(dict.fromkeys([*RULES, RULE_NAME], RULE))
    try:
        yield
    finally:
        RULES.clear()
        RULES.update(rules)
        if variable is None:
            del os.environ[HISTOGRAM_VARIABLE]
