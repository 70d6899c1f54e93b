"""Grows trees for drafters that predict one distribution per depth (Medusa).

Some drafters add a bias to the logits, which depends on the token before. Without a bias, the most probable nodes are
found exactly: a node's path probability is the product of its tokens' probabilities, so the next node of a tree of
points is the next sibling or the best child of a node in the tree. Drawn trees, and trees with a bias, are grown by
`ReferenceGrowth`, in which each node has its own random numbers or distribution.
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

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


class PathBias(Protocol):
    """Additions to the logits of a level's nodes, which depend on their paths."""

    def __call__(
        self, depth: int, owners: torch.Tensor, tokens: torch.Tensor, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return biases [N, draft vocabulary] of nodes' children, and any nodes' states [N, S].

        Args:
            depth: depth of the nodes; the roots have 0.
            owners: [N] index of each node's task.
            tokens: [N] the nodes' tokens.
            states: [N, S] states of the nodes' parents; None for roots.
        """


def grow_edges(
    tasks: Sequence[GrowthTask],
    levels: Sequence[torch.Tensor],
    bias: PathBias,
    shape: GrowthShape,
    token_ids: torch.Tensor,
) -> list[TokenTree]:
    """Return one tree per task, for distributions with a bias.

    Args:
        levels: the logits [tasks, draft vocabulary] of each depth. Their number limits the trees' depth.
        token_ids: [draft vocabulary] target token of each draft token.
    """
    place = {id(task.sequence): index for index, task in enumerate(tasks)}
    left = iter(enumerate(levels))
    last: dict[int, torch.Tensor] = {}
    """States of the last level's nodes, by task. Parents are numbered within their level."""

    def forward(segments: Sequence[Segment]) -> list[torch.Tensor]:
        depth, rows = next(left)  # one call per level
        places = [place[id(segment.sequence)] for segment in segments]
        before = [list(segment.nodes or segment.delta[-1:]) for segment in segments]
        owners = [index for index, tokens in zip(places, before, strict=True) for _ in tokens]
        states = [last[i][list(s.parents)] for i, s in zip(places, segments, strict=True)] if last else None
        biases, after = bias(
            depth,
            torch.tensor(owners),
            torch.tensor([token for tokens in before for token in tokens]),
            torch.cat(states) if states else None,
        )
        counts = [len(tokens) for tokens in before]
        if after is not None:
            last.update(zip(places, torch.split(after, counts), strict=True))
        return [*torch.split(rows[owners] + biases, counts)]

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
