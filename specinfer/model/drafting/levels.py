"""Grows trees for drafters that predict one distribution per depth (Medusa).

Some drafters add a bias to the logits, which depends on the token before. Without a bias, the most probable nodes are
found exactly: a node's path probability is the product of its tokens' probabilities, so the next node of a tree of
points is the next sibling or the best child of a node in the tree. Drawn trees, and trees with a bias, are grown by
`ReferenceGrowth`, in which each node has its own random numbers or distribution.
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
    """A node to be added; tuples sort by falling path probability."""

    negated: float
    """Path probability times -1."""
    number: int
    parent: int
    depth: int
    rank: int
    """Rank among its siblings, from 0."""


def grow_levels(
    task: GrowthTask, levels: Sequence[torch.Tensor], shape: GrowthShape, token_ids: torch.Tensor
) -> TokenTree:
    """Return one request's tree, for distributions without bias.

    Args:
        levels: the logits [draft vocabulary] of each depth. Their number limits the tree's depth.
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
    """Return one tree per task, for distributions with a bias.

    Args:
        levels: the logits [tasks, draft vocabulary] of each depth. Their number limits the trees' depth.
        bias: maps N tokens to additions [N, draft vocabulary] to the logits of the next token.
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
    """Return the tree of the most probable nodes, as points."""
    limits, followed = task.limits, shape.followed(task.limits)
    scores: list[list[float]] = []
    ids: list[list[int]] = []
    tokens, parents, chances, reach = [task.delta[-1]], [-1], [1.0], [1.0]
    waiting: list[_Candidate] = []

    def consider(parent: int, depth: int, rank: int) -> None:
        """Queue a node, unless its path has probability 0."""
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
