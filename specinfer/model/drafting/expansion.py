"""Growth of token trees with a small model, over any executor.

Two ways to grow, both level by level with one batched pass each (paper, section 3; Sequoia and EAGLE-2
for best-first):

- best-first (default): every level expands the `beam` most probable nodes; of all candidates the budget's
  worth with the highest path probability are kept.
- an expansion vector <k1, ..., km>: at depth i every node expands its top k_i tokens.

The children of greedy requests are their parents' most probable tokens, as points. Those of stochastic
requests are points as well, the tokens that win with the noise by which the target will choose
(`specinfer.model.sampling.noise`); or they are drawn from q, which is first cut to its `q_support` most
probable tokens and renormalised. Best-first, draws are ranked by what is known before they are drawn
(`specinfer.tree.draws`): a rank that depended on their tokens would not be lossless. Whether a node is
expanded, and whether a draw is made at all, depends on draws of higher rank only, so the tree lists its
draws by rank (`specinfer.tree.cut`, rule 3); those of an expansion vector as they were made. The ranks of
points may depend on the noise, so if any speculator draws for a request, its points are made without it
(`GrowthTask.blind`).

The compiled kernels do the same in one call (`native/csrc/drafting/growth.h`, rules in `growth_rules.h`);
this is their reference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import Segment
from specinfer.model.drafting.task import NOISY_RIVALS, GrowthShape, GrowthTask
from specinfer.model.sampling.distributions import Float32, Float64, generator, probabilities
from specinfer.model.sampling.drawing import Drawing, draft_distribution
from specinfer.model.sampling.noise import perturbed
from specinfer.sampling import StreamDomain, noise_key
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits, keep
from specinfer.tree.builder import point_tree

Forward = Callable[[Sequence[Segment]], list[torch.Tensor]]


@dataclass(slots=True)
class _Growth:
    """A tree under construction. Its nodes are not the cache's: see `scored`."""

    task: GrowthTask
    position: int
    """Absolute position of the token after the root. It keys random streams."""
    builder: TreeBuilder
    frontier: list[int] = field(default_factory=lambda: [0])
    """Builder nodes of the coming logits, in order."""
    path_probability: list[float] = field(default_factory=lambda: [1.0])
    """Estimated probability that each builder node's path is accepted."""
    scored: dict[int, int] = field(default_factory=lambda: {0: -1})
    """Builder node -> tentative node of the cache; -1 is the context's end."""
    drawings: list[Drawing] = field(default_factory=list)
    """Drawings of all expanded nodes, if children are drawn."""
    draws: list[tuple[int, int, float]] = field(default_factory=list)
    """(drawing, place, path probability before the draw), in order of draws."""

    @property
    def limits(self) -> TreeLimits:
        return self.task.limits

    @property
    def full(self) -> bool:
        """True if every further node takes the place of another."""
        return len(self.path_probability) > self.limits.nodes

    @property
    def bar(self) -> float:
        """Path probability of the tree's last kept node; 0 until full."""
        return sorted(self.path_probability[1:], reverse=True)[self.limits.nodes - 1] if self.full else 0.0

    def next_path_probability(self, drawing: Drawing) -> float:
        """Return the next drawn child's path probability, before its draw."""
        return self.path_probability[drawing.node] * drawing.chance

    def draw(self, drawing: Drawing) -> None:
        """Draw a child; a token drawn again is the same node."""
        path_probability, chance = self.next_path_probability(drawing), drawing.chance
        child = self.builder.add(drawing.node, drawing.draw(), chance)
        self.draws.append((drawing.index, len(drawing.children), path_probability))
        drawing.children.append(child)
        if child == len(self.path_probability):
            self.path_probability.append(path_probability)


class ReferenceGrowth:
    """Grows trees with passes of any model.

    Args:
        forward: runs one pass (`ModelRunner.forward`).
        token_ids: [draft vocabulary] target token of each draft token.
    """

    def __init__(self, forward: Forward, shape: GrowthShape, token_ids: torch.Tensor) -> None:
        self._forward, self._shape, self._token_ids = forward, shape, token_ids

    def grow(self, tasks: Sequence[GrowthTask]) -> list[TokenTree]:
        """Grow one tree per task. Context is committed; nodes stay tentative."""
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
        """Return the tree, cut to its most probable nodes."""
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
        """Run the frontier nodes of all trees in one pass."""
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
        """Add children to frontier nodes, and choose the next frontier."""
        if self._shape.draws(growth.task.sampling):
            added = self._expand_sampled(growth, rows, depth)
        else:
            added = self._expand_best(growth, rows, depth)
        if self._shape.expansion is None:
            # no child is likelier than its parent: below the least likely node of a full tree none will be in it
            bar, least = growth.bar, self._shape.followed(growth.limits)
            likelier = {n: p for n in added if (p := growth.path_probability[n]) > bar and p >= least}
            added = sorted(likelier, key=lambda node: -likelier[node])[: self._shape.beam]
        growth.frontier = added

    def _expand_best(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Add the likeliest choices of the target to each frontier node."""
        limits = growth.limits
        width = self._shape.width(limits, depth, len(self._token_ids))
        if width == 0:
            return []
        scores, ids = candidates(growth.task, rows, self._token_ids, width, growth.position + depth)
        below = np.array([growth.path_probability[node] for node in growth.frontier])[:, None] * scores
        # a candidate that is not among the level's `nodes` best cannot be among the tree's
        least = 0.0
        if self._shape.expansion is None and below.size > limits.nodes:
            least = float(np.partition(below, -limits.nodes, axis=None)[-limits.nodes])
        added: list[int] = []
        for row, node in enumerate(growth.frontier):
            count = int(((below[row] >= least) & (below[row] > 0)).sum())  # a row falls: its first ones
            added += growth.builder.propose_points(node, ids[row][:count], scores[row, :count].tolist())
            growth.path_probability.extend(below[row, :count].tolist())
        return added

    def _expand_sampled(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        """Draw the frontier's children, by expansion vector or likelihood."""
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
    """Draw equally many children for every node, within the limit."""
    for drawing in drawings:
        while len(drawing.children) < count and drawing.chance > 0 and not growth.full:
            growth.draw(drawing)


def _draw_likeliest(growth: _Growth, drawings: Sequence[Drawing], max_draws: int) -> None:
    """Draw the likeliest children while they may be among the tree's best.

    No node gets more than `max_draws`.
    """
    while open_ := [d for d in drawings if len(d.children) < max_draws and d.chance > 0]:
        likeliest = max(open_, key=growth.next_path_probability)
        if growth.full and growth.next_path_probability(likeliest) <= growth.bar:
            return
        growth.draw(likeliest)


def _drawn_tree(growth: _Growth, best_first: bool) -> TokenTree:
    """Return the tree of the first draws within the budget.

    They are sorted by rank or draw order. The tree ends with the budget even if the next draw repeats a node:
    another rule would depend on its token.
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
    """Return scores and target tokens [F, width] of F nodes' candidates.

    Args:
        rows: logits [F, draft vocabulary].
        token_ids: [draft vocabulary] target token of each draft token.
        position: position of the candidates in the context, which keys the noise.
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
    """Return [F, most] indices of each row's largest numbers, descending."""
    count = min(count, rows.shape[-1])
    places = np.argpartition(-rows, count - 1, axis=-1)[:, :count]
    order = np.argsort(-np.take_along_axis(rows, places, -1), axis=-1)
    return np.take_along_axis(places, order, -1)
