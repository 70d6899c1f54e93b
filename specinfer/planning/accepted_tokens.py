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
"""Accepted tokens of one node before any tree was seen."""
_PRIOR = 8.0
"""Weight, in trees, of the gain expected before trees are measured."""
_OTHER_CLASSES = 24.0
"""Weight, in trees, of the mean over all batch classes."""
_HALF = 150.0
"""Steps after which an outcome has half its weight."""
_KEPT = 8.0
"""Minimum weight, in trees, that old observations keep."""


class Gain(NamedTuple):
    """Accepted tokens that a tree size adds to the next smaller size."""

    tokens: float
    trees: float
    """Weight of the observed trees; it falls with their age."""


@dataclass(slots=True)
class _Sums:
    """Weighted sums over trees; item k is for `2**k` nodes."""

    trees: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    step: int = 0

    def fade(self, step: int) -> None:
        """Reduce the trees' weights for the steps since the last call."""
        if step == self.step:
            return
        part = 0.5 ** ((step - self.step) / _HALF)
        self.step = step
        for place, trees in enumerate(self.trees):
            kept = max(part, min(1.0, _KEPT / trees)) if trees else 1.0
            self.trees[place] *= kept
            self.accepted[place] *= kept

    def add(self, place: int, accepted: float, trees: float) -> None:
        while len(self.trees) <= place:
            self.trees.append(0.0)
            self.accepted.append(0.0)
        self.trees[place] += trees
        self.accepted[place] += accepted


class AcceptedTokens:
    """Mean gains by speculator set, batch class and size."""

    def __init__(self) -> None:
        self._sums: dict[tuple[SpeculatorSet, int | None], _Sums] = {}

    def add(
        self,
        asked: SpeculatorSet,
        batch_class: int,
        places: int,
        trees: Iterable[tuple[Sequence[int], float]],
        step: int,
    ) -> None:
        """Count trees of one step.

        Args:
            asked: speculators of the trees.
            batch_class: class of the batch size.
            places: number of sizes 1, 2, 4, ... up to the planned nodes per request.
            trees: `tree_parts.ranked_nodes` of each tree, and its request's `RequestTexts.ratio` as weight.
            step: number of the step.
        """
        both = [self._sums.setdefault((asked, which), _Sums()) for which in (batch_class, None)]
        for sums in both:
            sums.fade(step)
        for needed, weight in trees:
            before = 0
            for place in range(places):
                accepted = bisect_right(needed, 1 << place)
                for sums in both:
                    sums.add(place, accepted - before, weight)
                before = accepted

    def gains(
        self,
        asked: SpeculatorSet,
        batch_class: int,
        places: int,
        like: Sequence[Gain] = (),
        share: float = 1.0,
    ) -> list[Gain]:
        """Return the gains of sizes 1, 2, 4, ...

        Args:
            asked: speculators.
            batch_class: class of the batch size.
            places: number of sizes.
            like: gains of the whole pool by size; empty to extrapolate from smaller sizes.
            share: the set's share of the pool's accepted tokens, 0 to 1.
        """
        everywhere, here = self._sums.get((asked, None)), self._sums.get((asked, batch_class))
        gains: list[Gain] = []
        total = 0.0
        for place in range(places):
            if like:
                expected = share * like[place].tokens
            else:
                expected = (
                    total * (log2(1 + (1 << place)) / log2(1 + (1 << place >> 1)) - 1) if place else _FIRST
                )
            trees = like[place].trees / 2 if like else 0.0
            if everywhere is not None and place < len(everywhere.trees):
                trees_at_place = everywhere.trees[place]
                trees += trees_at_place
                expected = (everywhere.accepted[place] + _PRIOR * expected) / (trees_at_place + _PRIOR)
            if here is not None and place < len(here.trees):
                expected = (here.accepted[place] + _OTHER_CLASSES * expected) / (
                    here.trees[place] + _OTHER_CLASSES
                )
            total += expected
            gains.append(Gain(expected, trees))
        return gains
