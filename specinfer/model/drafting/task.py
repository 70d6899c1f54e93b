"""Defines the tasks of tree growth, and the drafter's settings for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, runtime_checkable

from specinfer.model.arrays import Array
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE
from specinfer.request.sampling import Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits

GREEDY_SCORE_TEMPERATURE = 0.75
"""Temperature of the softmax that scores candidates of greedy requests.

A greedy target chooses the draft's most probable token more often than the draft's probability suggests, as the draft
was trained on the target's distribution. So trees should be deep and narrow (benchmarks/tried.md#greedy-scores).
"""


NOISY_SCORE_TEMPERATURE = 1.25
"""Temperature of the softmax that scores candidates of sampled requests.

The softmax covers `NOISY_RIVALS` candidates. Draft and target choose with the same noise, but q differs from P: the
draft's choice wins in the target less often than q suggests.
"""
NOISY_RIVALS = 8
"""Number of candidates in the softmax that scores sampled requests' points."""


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """Settings of the trees that a drafter grows."""

    expansion: ExpansionVector | None = None
    beam: int = 4
    """Maximum nodes expanded per level in best-first growth."""
    deepest: int | None = None
    """Maximum depth of a best-first tree; None: the request's limit."""
    min_path_probability: float = 0.0
    """Nodes of best-first trees are expanded only from this path probability on."""
    kind: ProposalKind = ProposalKind.POINT
    """Kind of children for sampled requests; greedy requests get points."""
    q_support: int = 32
    """Children are drawn from this number of most probable tokens."""

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return a request's limits, reduced to `deepest` in best-first growth."""
        if self.deepest is None or not self.best_first(asked):
            return asked
        return replace(asked, depth=min(asked.depth, self.deepest))

    def followed(self, limits: TreeLimits) -> float:
        """Return the minimum path probability of nodes to expand."""
        return max(self.min_path_probability, limits.min_path_probability) if self.best_first(limits) else 0.0

    def best_first(self, limits: TreeLimits) -> bool:
        """Return whether trees are neither chains nor of an expansion vector."""
        return self.expansion is None and limits.width is None

    def width(self, limits: TreeLimits, depth: int, vocabulary: int) -> int:
        """Return the maximum number of children of a node at this depth."""
        width = min(limits.nodes, vocabulary)
        if self.expansion is not None:
            widths = self.expansion.widths
            width = min(width, widths[depth]) if depth < len(widths) else 0
        return min(width, limits.width) if limits.width is not None else width

    def draws(self, asked: Sampling) -> bool:
        return self.kind is not ProposalKind.POINT and not asked.greedy

    def scored_nodes(self, limits: TreeLimits) -> int:
        """Return the maximum number of a tree's nodes that passes compute."""
        if self.expansion is None:
            return self.beam * max(limits.depth, 1)
        widths = self.expansion.widths[: limits.depth]
        return sum(prod(widths[: i + 1]) for i in range(len(widths)))


@dataclass(frozen=True, slots=True)
class GrowthTask:
    """A request's context and limits, for which to grow a tree."""

    sequence: KVSequence
    delta: Sequence[int]
    """Context tokens missing in the cache; the last is the root."""
    limits: TreeLimits
    sampling: Sampling
    """Sampling parameters for the tree.

    With points, the seed is the request's, which gives the target's noise. With draws, the seed is the drafter's.
    If greedy, children are the most probable tokens.
    """
    blind: float | None = None
    """Temperature of a sampled request whose noise the drafter must not use.

    Then `sampling` is greedy, and this temperature only affects scores. None: the noise may be used.
    """
    offset: int = 0
    """Number of context tokens before those of the cache.

    Noise and random streams depend on positions in the whole context.
    """

    @property
    def context_length(self) -> int:
        """Context position of the first token after the tree's root."""
        return self.offset + self.sequence.length + len(self.delta)

    @property
    def score_temperature(self) -> float:
        if self.blind is not None:
            return max(self.blind, SMALLEST_TEMPERATURE)
        return GREEDY_SCORE_TEMPERATURE if self.sampling.greedy else NOISY_SCORE_TEMPERATURE


class LevelTimes:
    """Measured seconds of a level's pass, by number of trees."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, trees: int, seconds: float, levels: int) -> None:
        """Average in the seconds of a call with this number of levels.

        An outlier counts as at most `_MOST` times the mean.
        """
        size = trees.bit_length()
        usual = self._seconds.get(size, seconds / levels)
        level_s = min(seconds / levels, _MOST * usual)
        self._seconds[size] = usual + _NEW * (level_s - usual)

    def least_level(self, tasks: Sequence[GrowthTask]) -> float:
        """Return the minimum sum of path probabilities for which a level pays.

        It is the level's seconds times the tokens per second that the tasks require.
        """
        speed = max([task.limits.tokens_per_second for task in tasks], default=0.0)
        return speed * self._seconds.get(len(tasks).bit_length(), 0.0)


_NEW, _MOST = 0.1, 1.5
"""Weight of a new measurement; its maximum relative to the mean."""


@runtime_checkable
class Grower(Protocol):
    """An executor that can grow whole trees in one call."""

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """Return whether `grow` supports these trees; otherwise use `ReferenceGrowth`."""

    def grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: Array) -> list[TokenTree]:
        """Grow one tree per task; write its nodes' keys and values.

        Each sequence must have space for its delta and nodes.
        """
