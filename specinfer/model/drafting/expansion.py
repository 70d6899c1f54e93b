"""Grows token trees with a small model, on any executor.

A tree grows level by level, each level in one batched pass (paper, section 3; best-first: Sequoia, EAGLE-2).

- Best-first (default): each level expands its `beam` most probable nodes. The tree keeps the candidates with the
  highest path probability, up to its maximum of nodes.
- Expansion vector <k1, ..., km>: every node at depth i gets its top k_i tokens as children.

Children of greedy requests are points: the most probable tokens. Children of sampled requests are points, too: the
tokens that win with the noise by which the target will choose (`specinfer.model.sampling.noise`). Or they are
drawn from q, cut to its `q_support` most probable tokens and renormalised. Best-first growth ranks a draw before
its token is known (`specinfer.tree.draws`): a rank that depends on the token is not lossless. Whether a node is
expanded or a draw is made depends only on draws of higher rank, so the tree lists its draws by rank
(`specinfer.tree.cut`, rule 3); with an expansion vector, it lists them in the order of drawing. Ranks of points may
depend on the noise, so a request for which any speculator draws gets points without noise (`GrowthTask.blind`).

The compiled kernels grow the same trees in one call (`native/csrc/drafting/growth.h`, rules in `growth_rules.h`);
this file is their reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.drafting.task import NOISY_RIVALS, GrowthShape, GrowthTask
from specinfer.model.lazy_torch import torch
from specinfer.model.sampling.distributions import Float32, Float64, generator, probabilities
from specinfer.model.sampling.drawing import Drawing, draft_distribution
from specinfer.model.sampling.noise import perturbed
from specinfer.request.sampling import StreamDomain, noise_key
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits, keep
from specinfer.tree.builder import point_tree

Forward = Callable[[Sequence[Segment]], list[torch.Tensor]]


@dataclass(slots=True)
class _Growth:
    """A tree under construction. Nodes are numbered by its builder."""

    task: GrowthTask
    position: int
    """Context position of the token after the root; selects the random numbers."""
    builder: TreeBuilder
    frontier: list[int] = field(default_factory=lambda: [0])
    """Nodes that the next level expands, in the order of their logits."""
    path_probability: list[float] = field(default_factory=lambda: [1.0])
    """Estimated probability that a node and its ancestors are accepted, by node."""
    scored: dict[int, int] = field(default_factory=lambda: {0: -1})
    """Node -> its index among the cache's tentative nodes; the root is -1."""
    drawings: list[Drawing] = field(default_factory=list)
    """Draws below each expanded node; empty if children are points."""
    draws: list[tuple[int, int, float]] = field(default_factory=list)
    """All draws: (index in `drawings`, index of the draw there, path probability)."""

    @property
    def limits(self) -> TreeLimits:
        return self.task.limits

    @property
    def full(self) -> bool:
        return len(self.path_probability) > self.limits.nodes

    @property
    def bar(self) -> float:
        """Path probability that a new node must exceed; 0 for unfilled trees."""
        return sorted(self.path_probability[1:], reverse=True)[self.limits.nodes - 1] if self.full else 0.0

    def next_path_probability(self, drawing: Drawing) -> float:
        """Return the path probability of the next draw, whatever its token."""
        return self.path_probability[drawing.node] * drawing.chance

    def draw(self, drawing: Drawing) -> None:
        """Draw a child; a token drawn again gives the same node."""
        path_probability, chance = self.next_path_probability(drawing), drawing.chance
        child = self.builder.add(drawing.node, drawing.draw(), chance)
        self.draws.append((drawing.index, len(drawing.children), path_probability))
        drawing.children.append(child)
        if child == len(self.path_probability):
            self.path_probability.append(path_probability)


class ReferenceGrowth:
    """Grows trees level by level, with any function that runs passes.

    Args:
        forward: runs one pass (`ModelRunner.forward`).
        token_ids: [draft vocabulary] target token of each draft token.
    """

    def __init__(self, forward: Forward, shape: GrowthShape, token_ids: torch.Tensor) -> None:
        self._forward, self._shape, self._token_ids = forward, shape, token_ids

    def grow(self, tasks: Sequence[GrowthTask]) -> list[TokenTree]:
        """Return one tree per task.

        The cache then contains the deltas as context, and the scored nodes as tentative nodes.
        """
        growths = [_Growth(t, t.context_length, TreeBuilder(t.delta[-1])) for t in tasks]
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
        return [self._finish(growth) for growth in growths]

    def _finish(self, growth: _Growth) -> TokenTree:
        if self._shape.draws(growth.task.sampling):
            return _drawn_tree(growth, best_first=self._shape.expansion is None)
        built, max_nodes = growth.builder, growth.limits.nodes
        if len(built) - 1 <= max_nodes:
            return built.build()
        ranked = sorted(range(1, len(built)), key=lambda node: (-growth.path_probability[node], node))[
            :max_nodes
        ]
        return point_tree(built.token_ids, built.parents, built.scores, sorted(ranked))

    def _score(self, growths: list[_Growth]) -> list[torch.Tensor]:
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
        """Add a level of children; choose the nodes to expand next."""
        if self._shape.draws(growth.task.sampling):
            added = self._expand_sampled(growth, rows, depth)
        else:
            added = self._expand_best(growth, rows, depth)
        if self._shape.expansion is None:
            # a child is no more probable than its parent: children of nodes below the bar cannot be kept
            bar, least = growth.bar, self._shape.followed(growth.limits)
            likelier = {n: p for n in added if (p := growth.path_probability[n]) > bar and p >= least}
            added = sorted(likelier, key=lambda node: -likelier[node])[: self._shape.beam]
        growth.frontier = added

    def _expand_best(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Add the most probable points below each frontier node."""
        limits = growth.limits
        width = self._shape.width(limits, depth, len(self._token_ids))
        if width == 0:
            return []
        scores, ids = candidates(growth.task, rows, self._token_ids, width, growth.position + depth)
        below = np.array([growth.path_probability[node] for node in growth.frontier])[:, None] * scores
        # only the level's best `limits.nodes` candidates can be among the tree's best
        least = 0.0
        if self._shape.expansion is None and below.size > limits.nodes:
            least = float(np.partition(below, -limits.nodes, axis=None)[-limits.nodes])
        added: list[int] = []
        for row, node in enumerate(growth.frontier):
            count = int(((below[row] >= least) & (below[row] > 0)).sum())  # scores fall along a row
            added += growth.builder.propose_points(node, ids[row][:count], scores[row, :count].tolist())
            growth.path_probability.extend(below[row, :count].tolist())
        return added

    def _expand_sampled(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        drawings = [self._drawing(growth, node, row) for node, row in zip(growth.frontier, rows, strict=True)]
        before = len(growth.path_probability)
        width = self._shape.width(growth.limits, depth, len(self._token_ids))
        if self._shape.expansion is not None:
            _draw_all(growth, drawings, width)
        else:
            _draw_likeliest(growth, drawings, width)
        return list(range(before, len(growth.path_probability)))

    def _drawing(self, growth: _Growth, node: int, row: torch.Tensor) -> Drawing:
        ids, p = draft_distribution(row, growth.task.sampling, self._shape.q_support)
        q = self._token_ids.numpy()[ids].astype(np.int32), p
        index = len(growth.drawings)
        rng = generator(growth.task.sampling, growth.position, StreamDomain.DRAFT, index)
        growth.drawings.append(Drawing(index, node, q, self._shape.kind, rng))
        return growth.drawings[-1]


def _draw_all(growth: _Growth, drawings: Sequence[Drawing], count: int) -> None:
    """Make `count` draws per node, until the tree is full."""
    for drawing in drawings:
        while len(drawing.children) < count and drawing.chance > 0 and not growth.full:
            growth.draw(drawing)


def _draw_likeliest(growth: _Growth, drawings: Sequence[Drawing], max_draws: int) -> None:
    """Make the most probable draws, until further draws cannot be kept.

    A node gets at most `max_draws`.
    """
    while open_ := [d for d in drawings if len(d.children) < max_draws and d.chance > 0]:
        likeliest = max(open_, key=growth.next_path_probability)
        if growth.full and growth.next_path_probability(likeliest) <= growth.bar:
            return
        growth.draw(likeliest)


def _drawn_tree(growth: _Growth, best_first: bool) -> TokenTree:
    """Return the tree of the first draws, up to its maximum size.

    Draws are ordered by path probability (best first), or as they were made. The tree ends when its last node is
    taken, even if the next draw repeats a node: any other rule would depend on the draw's token.
    """
    made = sorted(growth.draws, key=lambda draw: -draw[2]) if best_first else growth.draws
    nodes: set[int] = set()
    kept = []
    for index, place, _ in made:
        if len(nodes) == growth.limits.nodes:
            break
        nodes.add(growth.drawings[index].children[place])
        kept.append((index, place))
    for drawing in growth.drawings:
        growth.builder.propose(drawing.proposal())
    return keep(growth.builder.build(), kept)


def candidates(
    task: GrowthTask, rows: torch.Tensor, token_ids: torch.Tensor, width: int, position: int
) -> tuple[Float32, list[list[int]]]:
    """Return F nodes' best children: scores and target tokens, [F, width] each.

    Args:
        rows: logits [F, draft vocabulary].
        token_ids: [draft vocabulary] target token of each draft token.
        position: context position of the candidates, which selects the noise.
    """
    if task.sampling.greedy:
        top = (rows / task.score_temperature).softmax(-1).topk(width, dim=-1)
        return top.values.cpu().numpy(), token_ids[top.indices.cpu()].tolist()
    key, vocabulary = noise_key(task.sampling.seed, position), token_ids.numpy()
    noisy = np.stack([perturbed(probabilities(row, task.sampling), vocabulary, key) for row in rows])
    best = _largest(noisy, max(width, NOISY_RIVALS))
    lead = np.take_along_axis(noisy, best, -1)
    weights = np.exp((lead - lead[:, :1]) / task.score_temperature)
    scores = weights / weights[:, :NOISY_RIVALS].sum(-1, keepdims=True)
    return scores[:, :width].astype(np.float32), vocabulary[best[:, :width]].tolist()


def _largest(rows: Float64, count: int) -> NDArray[np.intp]:
    count = min(count, rows.shape[-1])
    places = np.argpartition(-rows, count - 1, axis=-1)[:, :count]
    order = np.argsort(-np.take_along_axis(rows, places, -1), axis=-1)
    return np.take_along_axis(places, order, -1)
