"""Growing token trees with a small model: the rules, and a growth that runs them over any executor.

Three ways to grow, all level by level with one batched pass each (paper, section 3; Sequoia and EAGLE-2
for best-first):

- best-first (default, greedy requests): every level expands the `beam` most probable nodes; of all
  candidates the budget's worth with the highest path probability are kept.
- an expansion vector <k1, ..., km>: at depth i every node expands its top k_i tokens.
- sampled (stochastic requests): children are drawn from q, which is first cut to its `q_support` most
  probable tokens and renormalised. How many are drawn is decided before they are: a count that
  depended on the tokens drawn would not be lossless.

The compiled kernels do the same in one call (`native/growth.h`); this is their reference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from specinfer.model.batch import Segment
from specinfer.model.distributions import draw, generator, probabilities
from specinfer.model.kv_cache import KVSequence
from specinfer.sampling import GREEDY, SamplingParams, StreamDomain
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeBuilder, TreeLimits
from specinfer.tree.token_tree import Float32, Int32

Forward = Callable[[Sequence[Segment]], list[torch.Tensor]]

GREEDY_SCORE_TEMPERATURE = 0.75
"""Of the softmax that scores candidates for greedy requests. A target that takes its most probable token
takes the draft's first one more often than the draft, which learnt the target's distribution, gives it
probability; so trees for it should be deeper and narrower. Measured (docs/LOG.md)."""


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """How trees grow."""

    expansion: ExpansionVector | None = None
    beam: int = 4
    """Most nodes expanded per level when growing best-first."""
    deepest: int | None = None
    """Most levels of a best-first tree, whatever depth is asked for: each costs a pass."""
    least_reach: float = 0.0
    """Best-first trees do not go on below nodes whose path the draft thinks less probable. A level that no
    tree wants is not run."""
    kind: ProposalKind = ProposalKind.WITHOUT_REPLACEMENT
    """How the children of stochastic requests are drawn."""
    coolest_draw: float = 0.0
    """Requests of a lower temperature are drafted as greedy ones are: the most probable tokens, as points."""
    q_support: int = 64

    def __post_init__(self) -> None:
        if self.kind is ProposalKind.POINT:
            raise ValueError("kind = POINT: points are not drawn; `coolest_draw` asks for them")

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """What is asked for, but no best-first tree deeper than `deepest`; others as asked."""
        if self.deepest is None or not self.best_first(asked):
            return asked
        return replace(asked, depth=min(asked.depth, self.deepest))

    def followed(self, limits: TreeLimits) -> float:
        """The least probability of a path that a tree within these limits follows further."""
        return self.least_reach if self.best_first(limits) else 0.0

    def best_first(self, limits: TreeLimits) -> bool:
        """Whether trees within these limits grow best-first: not by an expansion vector, and no chains."""
        return self.expansion is None and limits.width is None

    def sampling(self, asked: SamplingParams) -> SamplingParams:
        """What is asked for, or greedy if that is cooler than `coolest_draw`."""
        return GREEDY if asked.temperature < self.coolest_draw else asked

    def score_temperature(self, asked: SamplingParams) -> float:
        """Temperature of the draft's probabilities as scores of points."""
        return GREEDY_SCORE_TEMPERATURE if asked.greedy else 1.0

    def scored_nodes(self, limits: TreeLimits) -> int:
        """Most nodes that growing one tree runs through the model."""
        if self.expansion is None:
            return self.beam * max(limits.depth, 1)
        widths = self.expansion.widths[: limits.depth]
        return sum(prod(widths[: i + 1]) for i in range(len(widths)))


@dataclass(frozen=True, slots=True)
class GrowthTask:
    """One request: its cache, what is new of its context, and the tree wanted behind it."""

    sequence: KVSequence
    delta: Sequence[int]
    """Context tokens the cache lacks, at least one; the last is the tree's root."""
    limits: TreeLimits
    sampling: SamplingParams
    """How children are drawn; greedy takes the most probable tokens, as points."""
    score_temperature: float = 1.0
    """Of the softmax that scores points."""


@runtime_checkable
class Grower(Protocol):
    """An executor that grows whole trees by itself."""

    def grow(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """One tree per task; writes the keys and values of all that is read. The cache must have room."""


@dataclass(slots=True)
class _Growth:
    """One tree under construction. Builder node i + 1 is not the cache's node i: see `scored`."""

    task: GrowthTask
    position: int
    """Context length: keys the random stream."""
    builder: TreeBuilder
    frontier: list[int] = field(default_factory=lambda: [0])
    """Builder nodes whose next tokens the coming logits predict, in the order of those logits."""
    reach: list[float] = field(default_factory=lambda: [1.0])
    """Per builder node, the draft's probability of its path."""
    scored: dict[int, int] = field(default_factory=lambda: {0: -1})
    """Builder node -> tentative node of the cache; -1 is the context's end."""
    streams: int = 0
    """Random streams used so far at this root."""

    @property
    def limits(self) -> TreeLimits:
        return self.task.limits


class ReferenceGrowth:
    """Grows trees with passes of any model.

    Args:
        forward: runs one pass (`ModelRunner.forward`).
        token_ids: [draft vocabulary] target token of each draft token.
    """

    def __init__(self, forward: Forward, shape: GrowthShape, token_ids: torch.Tensor) -> None:
        self._forward, self._shape, self._token_ids = forward, shape, token_ids

    def grow(self, tasks: Sequence[GrowthTask]) -> list[TokenTree]:
        """One tree per task, in order. Context is appended; the tree's nodes stay tentative."""
        growths = [_Growth(t, t.sequence.length + len(t.delta), TreeBuilder(t.delta[-1])) for t in tasks]
        segments = [Segment(t.sequence, t.delta, want_last=not t.limits.empty) for t in tasks]
        logits = self._forward(segments) if segments else []
        active = [(g, rows) for g, rows in zip(growths, logits, strict=True) if not g.limits.empty]
        depth = 0
        while active:
            for growth, rows in active:
                self._expand(growth, rows, depth)
            depth += 1
            going = [g for g, _ in active if g.frontier and depth < g.limits.depth]
            active = list(zip(going, self._score(going), strict=True))
        return [_finish(growth) for growth in growths]

    def _score(self, growths: list[_Growth]) -> list[torch.Tensor]:
        """Runs the frontier nodes of all trees in one pass."""
        if not growths:
            return []
        segments = []
        for g in growths:
            first = g.task.sequence.nodes
            tokens = [g.builder.token_ids[node] for node in g.frontier]
            parents = [g.scored[g.builder.parents[node]] for node in g.frontier]
            g.scored.update({node: first + i for i, node in enumerate(g.frontier)})
            segments.append(Segment(g.task.sequence, (), tokens, parents))
        return self._forward(segments)

    def _expand(self, growth: _Growth, rows: torch.Tensor, depth: int) -> None:
        """Adds children to every frontier node and chooses the next frontier among them."""
        if growth.task.sampling.greedy:
            added = self._expand_best(growth, rows, depth)
        else:
            added = self._expand_sampled(growth, rows, depth)
        if self._shape.expansion is None:
            least = self._shape.followed(growth.limits)
            added = [node for node in added if growth.reach[node] >= least]
            added = sorted(added, key=lambda node: -growth.reach[node])[: self._shape.beam]
        growth.frontier = added

    def _expand_best(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Each frontier node gets its most probable children."""
        limits = growth.limits
        width = self._width(limits, depth)
        if width == 0:
            return []
        top = (rows / growth.task.score_temperature).softmax(-1).topk(width, dim=-1)
        scores, ids = top.values.numpy(), self._token_ids[top.indices].tolist()
        reach = np.array([growth.reach[node] for node in growth.frontier])[:, None] * scores
        # a candidate that is not among the level's `nodes` best cannot be among the tree's
        least = 0.0
        if self._shape.expansion is None and reach.size > limits.nodes:
            least = float(np.partition(reach, -limits.nodes, axis=None)[-limits.nodes])
        added: list[int] = []
        for row, node in enumerate(growth.frontier):
            count = int((reach[row] >= least).sum())  # a row falls, so these are its first ones
            added += growth.builder.propose_points(node, ids[row][:count], scores[row, :count].tolist())
            growth.reach.extend(reach[row, :count].tolist())
        if self._shape.expansion is not None:
            return added
        return _within_budget(growth.reach, added, limits.nodes)

    def _expand_sampled(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Each frontier node gets children drawn from q; the counts are fixed beforehand."""
        added: list[int] = []
        sampling = growth.task.sampling
        counts = self._draw_counts(growth, depth)
        for node, row, count in zip(growth.frontier, rows, counts, strict=True):
            room = growth.limits.nodes - (len(growth.builder) - 1)
            if min(count, room) <= 0:
                continue
            draft_ids, p = draft_distribution(row, sampling, self._shape.q_support)
            q = self._token_ids.numpy()[draft_ids].astype(np.int32), p
            rng = generator(sampling, growth.position, StreamDomain.DRAFT, growth.streams)
            growth.streams += 1
            draws = _draw(q, min(count, room), self._shape.kind, rng)
            before = len(growth.builder)
            growth.builder.propose_samples(node, self._shape.kind, draws, q)
            new = range(before, len(growth.builder))
            growth.reach.extend(growth.reach[node] * growth.builder.scores[kid] for kid in new)
            added.extend(new)
        return added

    def _width(self, limits: TreeLimits, depth: int) -> int:
        """Children per node at this depth, for deterministic trees."""
        width = min(limits.nodes, len(self._token_ids))
        if self._shape.expansion is not None:
            widths = self._shape.expansion.widths
            width = min(width, widths[depth]) if depth < len(widths) else 0
        return min(width, limits.width) if limits.width is not None else width

    def _draw_counts(self, growth: _Growth, depth: int) -> list[int]:
        """Draws per frontier node: the level's share of the budget, split by path probability."""
        limits, frontier = growth.limits, growth.frontier
        if limits.width == 1:
            return [1] * len(frontier)
        if self._shape.expansion is not None:
            return [self._width(limits, depth)] * len(frontier)
        left = limits.nodes - (len(growth.builder) - 1)
        share = left / (limits.depth - depth)
        total = sum(growth.reach[node] for node in frontier) or 1.0
        # the quotient first: of a single node it is exactly 1, and no rounding decides a tie
        return [max(1, round(share * (growth.reach[node] / total))) for node in frontier]


def draft_distribution(logits: torch.Tensor, sampling: SamplingParams, support: int) -> tuple[Int32, Float32]:
    """q': the draft's distribution under the request's sampling, cut to its top tokens, renormalised.

    It is cut *before* anything is drawn; what is sent is what was sampled from.
    """
    p = probabilities(logits, sampling)
    ids = np.argpartition(-p, min(support, len(p)) - 1)[:support]
    ids = ids[np.lexsort((ids, -p[ids]))]
    ids = ids[p[ids] > 0]
    return ids.astype(np.int32), (p[ids] / p[ids].sum()).astype(np.float32)


def point_tree(
    tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], nodes: Sequence[int]
) -> TokenTree:
    """The tree of some deterministically chosen nodes, given in ascending order, parents before children."""
    builder, place = TreeBuilder(tokens[0]), {0: 0}
    kids: dict[int, list[int]] = {}
    for node in nodes:
        kids.setdefault(parents[node], []).append(node)
    for parent, children in kids.items():
        placed = builder.propose_points(
            place[parent], [tokens[node] for node in children], [scores[node] for node in children]
        )
        place.update(zip(children, placed, strict=True))
    return builder.build()


def _draw(q: tuple[Int32, Float32], count: int, kind: ProposalKind, rng: np.random.Generator) -> list[int]:
    """Tokens in draw order."""
    ids, p = q[0], q[1].astype(np.float64)
    draws: list[int] = []
    while len(draws) < count and p.any():
        index = draw(p, rng)
        draws.append(int(ids[index]))
        if kind is ProposalKind.WITHOUT_REPLACEMENT:
            p[index] = 0.0
    return draws


def _within_budget(reach: Sequence[float], added: list[int], budget: int) -> list[int]:
    """Those of the added nodes that are among the `budget` most probable nodes so far."""
    if len(reach) - 1 <= budget:
        return added
    smallest = sorted(reach[1:], reverse=True)[budget - 1]
    return [node for node in added if reach[node] >= smallest]


def _finish(growth: _Growth) -> TokenTree:
    """The tree, a deterministic one cut to its most probable nodes (a parent is never below its child)."""
    built, most = growth.builder, growth.limits.nodes
    if not growth.task.sampling.greedy or len(built) - 1 <= most:
        return built.build()
    ranked = sorted(range(1, len(built)), key=lambda node: (-growth.reach[node], node))[:most]
    return point_tree(built.token_ids, built.parents, built.scores, sorted(ranked))
