"""Trees of heads: one distribution per depth, with or without bias.

A bias depends on the token before. Without a bias, a token's distribution depends on its depth only, so a node's path
probability is the product of its tokens' probabilities. The most probable nodes are then found exactly: the next node
of a tree of points is the next sibling or the best child of a node in the tree. Draws follow the rules of
`ReferenceGrowth`, with random numbers per node. With a bias each node's children have their own distribution, and
all trees follow these rules.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from specinfer.model.batch import Segment
from specinfer.model.drafting.expansion import ReferenceGrowth, candidates
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.tree import TokenTree
from specinfer.tree.builder import point_tree


class _Candidate(NamedTuple):
    """A candidate node; the minimum is the most probable, then the first."""

    negated: float
    """Path probability, negated."""
    number: int
    parent: int
    depth: int
    rank: int
    """Rank among its siblings."""


def grow_levels(
    task: GrowthTask, levels: Sequence[torch.Tensor], shape: GrowthShape, token_ids: torch.Tensor
) -> TokenTree:
    """Return the tree of one request.

    Args:
        levels: the logits [draft vocabulary] of each depth; they limit the tree's depth.
        token_ids: [draft vocabulary] target token of each draft token.
    """
    limits = replace(task.limits, depth=min(task.limits.depth, len(levels)))
    task, levels = replace(task, limits=limits), levels[: max(limits.depth, 0)]
    if limits.empty:
        return TokenTree.root_only(task.delta[-1])
    if not shape.draws(task.sampling):
        return _most_probable(task, levels, shape, token_ids)
    left = iter(levels)

    def forward(segments: Sequence[Segment]) -> list[torch.Tensor]:
        rows = next(left)  # one call per level
        return [rows.expand(len(segment.nodes) or 1, -1) for segment in segments]

    return ReferenceGrowth(forward, shape, token_ids).grow([task])[0]


def grow_edges(
    tasks: Sequence[GrowthTask],
    levels: Sequence[torch.Tensor],
    bias: Callable[[torch.Tensor], torch.Tensor],
    shape: GrowthShape,
    token_ids: torch.Tensor,
) -> list[TokenTree]:
    """Return one tree per task; each task has its own sequence.

    Args:
        levels: the logits [tasks, draft vocabulary] of each depth; they limit the trees' depth.
        bias: returns what N tokens add to the logits after them, [N, draft vocabulary].
        token_ids: [draft vocabulary] target token of each draft token.
    """
    place = {id(task.sequence): index for index, task in enumerate(tasks)}
    left = iter(levels)

    def forward(segments: Sequence[Segment]) -> list[torch.Tensor]:
        rows = next(left)  # one call per level
        before = [list(segment.nodes or segment.delta[-1:]) for segment in segments]
        biases = bias(torch.tensor([token for tokens in before for token in tokens]))
        parts = torch.split(biases, [len(tokens) for tokens in before])
        return [
            rows[place[id(segment.sequence)]] + part for segment, part in zip(segments, parts, strict=True)
        ]

    cut = [
        replace(task, limits=replace(task.limits, depth=min(task.limits.depth, len(levels))))
        for task in tasks
    ]
    return ReferenceGrowth(forward, shape, token_ids).grow(cut)


def _most_probable(
    task: GrowthTask, levels: Sequence[torch.Tensor], shape: GrowthShape, token_ids: torch.Tensor
) -> TokenTree:
    """Return the budget's most probable nodes."""
    limits, followed = task.limits, shape.followed(task.limits)
    scores: list[list[float]] = []
    ids: list[list[int]] = []
    tokens, parents, chances, reach = [task.delta[-1]], [-1], [1.0], [1.0]
    waiting: list[_Candidate] = []

    def consider(parent: int, depth: int, rank: int) -> None:
        """Add a candidate, unless its path has probability 0."""
        if depth == len(scores) < len(levels):  # the first path of this depth
            width, position = shape.width(limits, depth, len(token_ids)), task.context_length + depth
            level = candidates(task, levels[depth][None], token_ids, width, position)
            scores.append(level[0][0].tolist())
            ids.append(level[1][0])
        if depth < len(levels) and rank < len(ids[depth]) and (p := reach[parent] * scores[depth][rank]) > 0:
            heapq.heappush(waiting, _Candidate(-p, len(tokens), parent, depth, rank))

    consider(0, 0, 0)
    while waiting and len(tokens) <= limits.nodes:
        _, _, parent, depth, rank = heapq.heappop(waiting)
        tokens.append(ids[depth][rank])
        parents.append(parent)
        chances.append(scores[depth][rank])
        reach.append(reach[parent] * chances[-1])
        consider(parent, depth, rank + 1)
        if reach[-1] >= followed:
            consider(len(tokens) - 1, depth + 1, 0)
    return point_tree(tokens, parents, chances, range(1, len(tokens)))
