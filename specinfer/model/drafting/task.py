"""Tasks of tree growth: shape, cache, context and limits."""

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

A greedy target chooses the draft's most probable token more often than the draft's probability of it, as the draft
learnt the target's distribution. So its trees should be deep and narrow (docs/performance.md#greedy-scores).
"""


NOISY_SCORE_TEMPERATURE = 1.25
"""Temperature of candidates' scores for sampled requests, over `NOISY_RIVALS`.

Draft and target share the noise, but q differs from P: the draft's winner wins in the target less often than its lead
under q suggests.
"""
NOISY_RIVALS = 8
"""Number of most probable candidates in the softmax of a score."""


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """Rules by which a drafter's trees grow."""

    expansion: ExpansionVector | None = None
    beam: int = 4
    """Maximum nodes expanded per level in best-first growth."""
    deepest: int | None = None
    """Maximum depth of a best-first tree: each level costs a pass."""
    min_path_probability: float = 0.0
    """Minimum path probability of expanded nodes in best-first growth.

    Levels without such nodes are not run.
    """
    kind: ProposalKind = ProposalKind.POINT
    """Children of sampled requests: points or draws."""
    q_support: int = 32
    """Number of most probable tokens to draw from."""

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return the limits, with `deepest` applied to best-first trees."""
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
        """Return the maximum number of children of a node at this depth."""
        width = min(limits.nodes, vocabulary)
        if self.expansion is not None:
            widths = self.expansion.widths
            width = min(width, widths[depth]) if depth < len(widths) else 0
        return min(width, limits.width) if limits.width is not None else width

    def draws(self, asked: Sampling) -> bool:
        """Return whether children are drawn for a request."""
        return self.kind is not ProposalKind.POINT and not asked.greedy

    def scored_nodes(self, limits: TreeLimits) -> int:
        """Return the maximum nodes of one tree that passes score."""
        if self.expansion is None:
            return self.beam * max(limits.depth, 1)
        widths = self.expansion.widths[: limits.depth]
        return sum(prod(widths[: i + 1]) for i in range(len(widths)))


@dataclass(frozen=True, slots=True)
class GrowthTask:
    """One request's cache, new context, and the limits of its tree."""

    sequence: KVSequence
    delta: Sequence[int]
    """Context tokens missing in the cache; the last is the root."""
    limits: TreeLimits
    sampling: Sampling
    """Sampling of the request.

    Points: the seed is the request's, for its noise. Draws: the seed is the drafter's own. Greedy: children are
    the most probable tokens.
    """
    blind: float | None = None
    """Temperature of a sampled request whose noise is hidden.

    Its `sampling` is greedy; the scores are probabilities at this temperature, at which the target samples.
    """
    offset: int = 0
    """Number of context tokens before the cache's first.

    Noise and random streams depend on positions in the whole context.
    """

    @property
    def context_length(self) -> int:
        """Context position of the token after the tree's root."""
        return self.offset + self.sequence.length + len(self.delta)

    @property
    def score_temperature(self) -> float:
        """Temperature of the softmax that scores points."""
        if self.blind is not None:
            return max(self.blind, SMALLEST_TEMPERATURE)
        return GREEDY_SCORE_TEMPERATURE if self.sampling.greedy else NOISY_SCORE_TEMPERATURE


class LevelTimes:
    """Measured seconds per level, by number of trees."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, trees: int, seconds: float, levels: int) -> None:
        """Count a call's levels; an outlier has little weight."""
        size = trees.bit_length()
        usual = self._seconds.get(size, seconds / levels)
        level_s = min(seconds / levels, _MOST * usual)
        self._seconds[size] = usual + _NEW * (level_s - usual)

    def least_level(self, tasks: Sequence[GrowthTask]) -> float:
        """Return the minimum sum of path probabilities of a worthwhile level."""
        speed = max([task.limits.tokens_per_second for task in tasks], default=0.0)
        return speed * self._seconds.get(len(tasks).bit_length(), 0.0)


_NEW, _MOST = 0.1, 1.5
"""Weight of a new time in the mean; its maximum ratio."""


@runtime_checkable
class Grower(Protocol):
    """An executor that grows whole trees itself."""

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """Return whether the executor grows these trees; else `expansion` does."""

    def grow(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Grow one tree per task; write its keys and values.

        The cache must have space for them.
        """
