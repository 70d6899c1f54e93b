"""Tasks of tree expansion: shapes, caches, contexts and limits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, runtime_checkable

import torch

from specinfer.model.cache.sequence import KVSequence
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE
from specinfer.sampling import Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits

GREEDY_SCORE_TEMPERATURE = 0.75
"""Temperature of candidates' scores for greedy requests.

A greedy target takes the draft's first token more often than the draft's probability: the draft learnt the
target's distribution. So trees for it should be deeper and narrower (docs/performance.md#greedy-scores).
"""


NOISY_SCORE_TEMPERATURE = 1.25
"""Temperature of candidates' scores for sampled requests, over `NOISY_RIVALS`.

The noise is the target's but q is not P: a winner here wins there less often than its lead suggests.
"""
NOISY_RIVALS = 8


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """Shape of growing trees."""

    expansion: ExpansionVector | None = None
    beam: int = 4
    """Maximum nodes expanded per level in best-first growth."""
    deepest: int | None = None
    """Maximum levels of a best-first tree: each costs a pass."""
    min_path_probability: float = 0.0
    """Minimum path probability of expanded nodes in best-first growth.

    Levels without any are not run.
    """
    kind: ProposalKind = ProposalKind.POINT
    """Kind of children for sampled requests: points or draws."""
    q_support: int = 32
    """Number of tokens from which draws are made."""

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return the requested limits, with a best-first tree no deeper than `deepest`."""
        if self.deepest is None or not self.best_first(asked):
            return asked
        return replace(asked, depth=min(asked.depth, self.deepest))

    def followed(self, limits: TreeLimits) -> float:
        """Return the minimum path probability of expanded nodes."""
        return max(self.min_path_probability, limits.min_path_probability) if self.best_first(limits) else 0.0

    def best_first(self, limits: TreeLimits) -> bool:
        """Return whether growth is best-first: neither chains nor expansion vectors."""
        return self.expansion is None and limits.width is None

    def width(self, limits: TreeLimits, depth: int, vocabulary: int) -> int:
        """Return the maximum children of a node at this depth."""
        width = min(limits.nodes, vocabulary)
        if self.expansion is not None:
            widths = self.expansion.widths
            width = min(width, widths[depth]) if depth < len(widths) else 0
        return min(width, limits.width) if limits.width is not None else width

    def draws(self, asked: Sampling) -> bool:
        """Return whether children are drawn."""
        return self.kind is not ProposalKind.POINT and not asked.greedy

    def scored_nodes(self, limits: TreeLimits) -> int:
        """Return the most nodes that growing one tree runs through the model."""
        if self.expansion is None:
            return self.beam * max(limits.depth, 1)
        widths = self.expansion.widths[: limits.depth]
        return sum(prod(widths[: i + 1]) for i in range(len(widths)))


@dataclass(frozen=True, slots=True)
class GrowthTask:
    """A request's task: cache, new context, and the tree's limits."""

    sequence: KVSequence
    delta: Sequence[int]
    """Context tokens missing in the cache, at least one, ending with root."""
    limits: TreeLimits
    sampling: Sampling
    """Sampling of the request.

    Its seed is that of the noise if children are points, and the drafter's own if they are drawn. Greedy:
    children are the most probable tokens.
    """
    blind: float | None = None
    """Temperature of a sampled request with hidden noise.

    Its `sampling` is greedy, and the most probable tokens are scored at this temperature, the frequency of
    the target's choices.
    """
    offset: int = 0
    """Number of context tokens without cache entries.

    Noise and draws depend on positions in the whole context.
    """

    @property
    def context_length(self) -> int:
        """Position of the token after the tree's root."""
        return self.offset + self.sequence.length + len(self.delta)

    @property
    def score_temperature(self) -> float:
        """Temperature of the softmax that scores points."""
        if self.blind is not None:
            return max(self.blind, SMALLEST_TEMPERATURE)
        return GREEDY_SCORE_TEMPERATURE if self.sampling.greedy else NOISY_SCORE_TEMPERATURE


class LevelTimes:
    """Measured seconds of a level, by number of trees."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, trees: int, seconds: float, levels: int) -> None:
        """Count the levels of a call. Outliers hardly count."""
        size = trees.bit_length()
        usual = self._seconds.get(size, seconds / levels)
        level_s = min(seconds / levels, _MOST * usual)
        self._seconds[size] = usual + _NEW * (level_s - usual)

    def least_level(self, tasks: Sequence[GrowthTask]) -> float:
        """Return the minimum sum of path probabilities of a worthwhile level."""
        speed = max([task.limits.tokens_per_second for task in tasks], default=0.0)
        return speed * self._seconds.get(len(tasks).bit_length(), 0.0)


_NEW, _MOST = 0.1, 1.5
"""Weight of a new time in the mean, and its maximum ratio."""


@runtime_checkable
class Grower(Protocol):
    """An executor that grows whole trees by itself."""

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """Return whether it grows these; otherwise the reference does."""

    def grow(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Grow one tree per task; write all keys and values.

        The cache must have space.
        """
