"""Synthetic acceptance: accepted tokens per step from a measured histogram.

This measures speed on model shapes without weights, since a random model would reject all drafts. Texts are
meaningless. Only benchmarks do this, and every report states it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from specinfer.errors import InvalidInputError
from specinfer.tree import TokenTree
from specinfer.verification.acceptance import RULES, Acceptance, AcceptanceRule, Randomness, Target

WARNING = (
    "SYNTHETIC ACCEPTANCE: lengths of accepted paths are drawn from a measured histogram, whatever the model "
    "says. Times are real, texts are not."
)


@dataclass(frozen=True, slots=True)
class AcceptanceHistogram:
    """Number of steps by accepted tokens, for a pool and budget."""

    name: str
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not sum(self.counts) or min(self.counts) < 0:
            raise InvalidInputError("counts", list(self.counts), "must be counts of 0 or more, not all 0")

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a number of accepted tokens."""
        sums = np.cumsum(self.counts)
        return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


GREEDY_32 = AcceptanceHistogram("greedy, 32 nodes", (41, 37, 32, 27, 14, 8, 6, 5, 14))
"""Measured with the shipped SSM and n-grams, merged, on 15 prompts (commit fff13999)."""


RULE_NAME = "synthetic"
RULE = "benchmarks.synthetic:verify_synthetic"
_active: list[AcceptanceHistogram] = []


def synthetic_rule(histogram: AcceptanceHistogram) -> AcceptanceRule:
    """Accept the deepest path up to a drawn number of nodes.

    The draw depends on the request's seed and the position after the root, so a repeated request has the same lengths.
    The target's choice is computed at every node of the path, as in the greedy rule.
    """

    def verify(tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
        path = deepest_path(tree)[: histogram.draw(randomness.stream(0))]
        choices = [target.best(node) for node in (0, *path)]
        return Acceptance(path, choices[-1])

    return verify


def deepest_path(tree: TokenTree) -> tuple[int, ...]:
    """Return the path to the first of the deepest nodes."""
    depths = np.zeros(len(tree), int)
    for node in range(1, len(tree)):
        depths[node] = depths[tree.parents[node]] + 1
    path, node = list[int](), int(depths.argmax())
    while node:
        path.append(node)
        node = int(tree.parents[node])
    return tuple(reversed(path))


def verify_synthetic(tree: TokenTree, target: Target, randomness: Randomness) -> Acceptance:
    """Apply `synthetic_rule` with the histogram of the innermost `synthetic_rules`."""
    return synthetic_rule(_active[-1])(tree, target, randomness)


@contextmanager
def synthetic_rules(histogram: AcceptanceHistogram) -> Iterator[None]:
    """Replace the acceptance rules of greedy and sampled requests in the context."""
    rules = dict(RULES)
    _active.append(histogram)
    RULES.update(dict.fromkeys([*RULES, RULE_NAME], RULE))
    try:
        yield
    finally:
        RULES.clear()
        RULES.update(rules)
        _active.pop()
