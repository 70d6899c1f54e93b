"""Measure accepted tokens by tree size. Pure.

A verified tree also shows the outcome of each smaller tree, which has the nodes of highest path probability.
So each tree counts for all sizes 1, 2, 4, ... up to its own: one tree of eight nodes is as informative about
four nodes as a tree of four. A gain is the number of accepted tokens that a size adds to the next smaller.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

from specinfer.planning.choice import SpeculatorSet

_FIRST = 0.5
"""Accepted tokens of one node, before any tree was verified."""
_PRIOR = 8.0
"""Weight, in trees, of the gain expected before trees are measured."""
_OTHER_CLASSES = 24.0
"""Weight, in trees, of the mean over all batch classes."""
_HALF = 150.0
"""Steps after which the weight of an observed tree is halved."""
_KEPT = 8.0
"""Minimum weight, in trees, that old observations keep."""


class Gain(NamedTuple):
    """Accepted tokens that a tree size adds to the next smaller size."""

    tokens: float
    trees: float
    """Weight of the observed trees; it falls with their age."""


@dataclass(slots=True)
class _Sums:
    """Weighted sums over trees; item k is for trees of `2**k` nodes."""

    trees: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    step: int = 0

    def fade(self, step: int) -> None:
        """Reduce the weights of trees for the steps since the last call."""
        if step == self.step:
            return
        part = 0.5 ** ((step - self.step) / _HALF)
        self.step = step
        for exponent, trees in enumerate(self.trees):
            kept = max(part, min(1.0, _KEPT / trees)) if trees else 1.0
            self.trees[exponent] *= kept
            self.accepted[exponent] *= kept

    def add(self, exponent: int, accepted: float, trees: float) -> None:
        while len(self.trees) <= exponent:
            self.trees.append(0.0)
            self.accepted.append(0.0)
        self.trees[exponent] += trees
        self.accepted[exponent] += accepted


class AcceptedTokens:
    """Mean gains by speculator set, batch class and size."""

    def __init__(self) -> None:
        self._sums: dict[tuple[SpeculatorSet, int | None], _Sums] = {}

    def add(
        self,
        speculators: SpeculatorSet,
        batch_class: int,
        num_sizes: int,
        trees: Iterable[tuple[Sequence[int], float]],
        step: int,
    ) -> None:
        """Count trees of one step.

        Args:
            speculators: speculator set that drafted the trees.
            batch_class: class of the batch size.
            num_sizes: number of sizes 1, 2, 4, ... up to the planned nodes per request.
            trees: (`tree_parts.ranked_nodes`, weight) of each tree; the weight is `RequestTexts.ratio`.
            step: number of the step.
        """
        both = [self._sums.setdefault((speculators, which), _Sums()) for which in (batch_class, None)]
        for sums in both:
            sums.fade(step)
        for needed, weight in trees:
            before = 0
            for exponent in range(num_sizes):
                accepted = bisect_right(needed, 1 << exponent)
                for sums in both:
                    sums.add(exponent, accepted - before, weight)
                before = accepted

    def gains(
        self,
        speculators: SpeculatorSet,
        batch_class: int,
        num_sizes: int,
        pool_gains: Sequence[Gain] = (),
        share: float = 1.0,
    ) -> list[Gain]:
        """Return the gains of sizes 1, 2, 4, ...

        Args:
            speculators: speculator set.
            batch_class: class of the batch size.
            num_sizes: number of sizes to return.
            pool_gains: gains of all speculators together, by size; empty to extrapolate from smaller sizes.
            share: accepted tokens of the set, as a share of `pool_gains`, 0 to 1.
        """
        everywhere, here = self._sums.get((speculators, None)), self._sums.get((speculators, batch_class))
        gains: list[Gain] = []
        total = 0.0
        for exponent in range(num_sizes):
            if pool_gains:
                expected = share * pool_gains[exponent].tokens
            else:
                expected = (
                    total * (log2(1 + (1 << exponent)) / log2(1 + (1 << exponent >> 1)) - 1)
                    if exponent
                    else _FIRST
                )
            trees = pool_gains[exponent].trees / 2 if pool_gains else 0.0
            if everywhere is not None and exponent < len(everywhere.trees):
                trees_here = everywhere.trees[exponent]
                trees += trees_here
                expected = (everywhere.accepted[exponent] + _PRIOR * expected) / (trees_here + _PRIOR)
            if here is not None and exponent < len(here.trees):
                expected = (here.accepted[exponent] + _OTHER_CLASSES * expected) / (
                    here.trees[exponent] + _OTHER_CLASSES
                )
            total += expected
            gains.append(Gain(expected, trees))
        return gains
