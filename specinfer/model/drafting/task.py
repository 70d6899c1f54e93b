"""Tasks of tree expansion: the shape of trees; for every request its cache, context and limits."""

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
"""Temperature of the softmax that scores candidates for greedy requests. A target that takes its most
probable token takes the draft's first one more often than the draft, which learnt the target's distribution,
gives it probability; so trees for it should be deeper and narrower. Measured: docs/findings.md#greedy-scores.
"""


NOISY_SCORE_TEMPERATURE = 1.25
"""Temperature of the softmax that scores candidates of stochastic requests, over the `NOISY_RIVALS` that
noise favours most. The noise is the target's but q is not P: a winner here wins there less often than its
lead suggests."""
NOISY_RIVALS = 8


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """Shape of growing trees."""

    expansion: ExpansionVector | None = None
    beam: int = 4
    """Most nodes expanded per level when growing best-first."""
    deepest: int | None = None
    """Most levels of a best-first tree, for any requested depth: each costs a pass."""
    min_path_probability: float = 0.0
    """Path probability by the draft below which best-first trees do not go on. A level that no tree wants is
    not run."""
    kind: ProposalKind = ProposalKind.POINT
    """Kind of the children of stochastic requests: points, or draws of either kind."""
    q_support: int = 32
    """Number of tokens from which draws are made."""

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return the requested limits, with a best-first tree no deeper than `deepest`."""
        if self.deepest is None or not self.best_first(asked):
            return asked
        return replace(asked, depth=min(asked.depth, self.deepest))

    def followed(self, limits: TreeLimits) -> float:
        """Return the least probability of a path that a tree within these limits follows further."""
        return max(self.min_path_probability, limits.min_path_probability) if self.best_first(limits) else 0.0

    def best_first(self, limits: TreeLimits) -> bool:
        """Return whether trees in these limits grow best-first: no chains, no expansion vector."""
        return self.expansion is None and limits.width is None

    def width(self, limits: TreeLimits, depth: int, vocabulary: int) -> int:
        """Return the most children of a node at this depth, given the size of the draft vocabulary."""
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
    """Task of one request: its cache, the new part of its context, and the limits of the tree behind it."""

    sequence: KVSequence
    delta: Sequence[int]
    """Context tokens that the cache lacks, at least one; the last is the tree's root."""
    limits: TreeLimits
    sampling: Sampling
    """Sampling of the request; its seed is that of the noise where children are points, and the drafter's own
    where they are drawn. Greedy: children are the most probable tokens."""
    blind: float | None = None
    """Temperature of a sampled request whose noise is hidden from the drafter. Its `sampling` is greedy, and
    the most probable tokens are scored at this temperature, since that is how often the target chooses them.
    """
    offset: int = 0
    """Number of context tokens without an entry in the cache: noise and draws depend on the place in the
    context."""

    @property
    def context_length(self) -> int:
        """Position of the token behind the tree's root."""
        return self.offset + self.sequence.length + len(self.delta)

    @property
    def score_temperature(self) -> float:
        """Temperature of the softmax that scores points."""
        if self.blind is not None:
            return max(self.blind, SMALLEST_TEMPERATURE)
        return GREEDY_SCORE_TEMPERATURE if self.sampling.greedy else NOISY_SCORE_TEMPERATURE


class LevelTimes:
    """Seconds of a level of trees, measured, by the number of trees that grow together."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def note(self, trees: int, seconds: float, levels: int) -> None:
        """Count the levels of one call. Times that are much longer than usual hardly count: they were disturbed."""
        size = trees.bit_length()
        usual = self._seconds.get(size, seconds / levels)
        found = min(seconds / levels, _MOST * usual)
        self._seconds[size] = usual + _NEW * (found - usual)

    def least_level(self, tasks: Sequence[GrowthTask]) -> float:
        """Return the sum of path probabilities below which a level brings fewer tokens than its time is worth."""
        speed = max([task.limits.tokens_per_second for task in tasks], default=0.0)
        return speed * self._seconds.get(len(tasks).bit_length(), 0.0)


_NEW, _MOST = 0.1, 1.5
"""Part of a new time in the mean, and the factor of the mean at which it is cut."""


@runtime_checkable
class Grower(Protocol):
    """An executor that grows whole trees by itself."""

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """Return whether it grows these; if not, the reference does, with passes of the executor."""

    def grow(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Return one tree per task; write keys and values of all tokens read. The cache must have space."""
