"""Trees whose nodes have likely tokens as points and one draw from all others: a shape measured, not offered.

Of one level with one draw this accepts the most that any rule can: the draw with min(P, q) of what the points leave,
the points by what is chosen. Points and ranks hang on a node's ancestors only, so candidates are listed by rank
(`specinfer.tree.cut`, rule 3).
"""

from collections.abc import Sequence

import numpy as np
import torch

from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.expansion import ReferenceGrowth, _Growth
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.runner import ModelRunner
from specinfer.model.sampling.distributions import draw, generator
from specinfer.model.sampling.drawing import draft_distribution
from specinfer.sampling import StreamDomain
from specinfer.tree import Proposal, ProposalKind, TokenTree, keep

POINT_SHARE = 2.0
"""Points are the tokens whose path probability is at least this over the node budget (tuned on training prompts)."""
_AGREEMENT = 0.85
"""Expected acceptance of the draw, over what the points leave."""


class PointsAndDraw(ReferenceGrowth):
    """Grows such trees best-first; a draw is one with replacement, from q without the points."""

    def __init__(self, runner: ModelRunner, shape: GrowthShape, token_ids: torch.Tensor) -> None:
        super().__init__(runner.forward, shape, token_ids)
        self._runner = runner
        self._made: dict[int, list[tuple[float, int, int]]] = {}
        """(-path probability, index of the proposal, place) of the candidates of each growth, by its id."""

    def grow(self, tasks: Sequence[GrowthTask]) -> list[TokenTree]:
        """Return one tree per task, in order; no node stays in the cache."""
        try:
            return super().grow(tasks)
        finally:
            for task in tasks:
                self._runner.cache.commit(task.sequence, ())

    def _expand_sampled(self, growth: _Growth, rows: torch.Tensor, depth: int) -> list[int]:
        before = len(growth.path_probability)
        for node, row in zip(growth.frontier, rows, strict=True):
            ids, q = draft_distribution(row, growth.task.sampling, self._shape.q_support)
            tokens = self._token_ids.numpy()[ids].astype(np.int32)
            reached = growth.path_probability[node] * q
            count = int((reached >= POINT_SHARE / growth.limits.nodes).sum())  # q falls
            self._propose_points(growth, node, tokens[:count], q[:count])
            if count < len(q):
                self._propose_draw(growth, node, (tokens[count:], q[count:]), first=count == 0)
        return list(range(before, len(growth.path_probability)))

    def _propose_points(self, growth: _Growth, node: int, tokens: np.ndarray, q: np.ndarray) -> None:  # type: ignore[type-arg]
        growth.builder.propose_points(node, tokens.tolist(), q.tolist())
        self._count(growth, node, q.tolist())

    def _propose_draw(
        self,
        growth: _Growth,
        node: int,
        rest: tuple[np.ndarray, np.ndarray],  # type: ignore[type-arg]
        first: bool,
    ) -> None:
        tokens, q = rest
        mass = float(q.sum())
        chance = _AGREEMENT * (float(np.sqrt(np.square(q, dtype=float).sum())) if first else mass)
        number = growth.builder.proposals
        rng = generator(growth.task.sampling, growth.position, StreamDomain.DRAFT, number)
        sent = (q / mass).astype(np.float32)
        child = growth.builder.add(node, int(tokens[draw(sent.astype(np.float64), rng)]), chance)
        kind = ProposalKind.WITH_REPLACEMENT
        growth.builder.propose(Proposal(node, 0, kind, (child,), tokens, sent))
        self._count(growth, node, [chance])

    def _count(self, growth: _Growth, node: int, chances: Sequence[float]) -> None:
        """Enter the children of the latest proposal."""
        found, index = self._made.setdefault(id(growth), []), growth.builder.proposals - 1
        for place, chance in enumerate(chances):
            reached = growth.path_probability[node] * chance
            growth.path_probability.append(reached)
            found.append((-reached, index, place))

    def _finish(self, growth: _Growth) -> TokenTree:
        made = sorted(self._made.pop(id(growth), []))[: growth.limits.nodes]
        return keep(growth.builder.build(), [(index, place) for _, index, place in made])


def grow_points_and_draw(drafter: SsmDrafter) -> None:
    """Let a drafter that draws grow trees of this shape from now on."""
    runner = drafter._runner

    def grow(tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        return PointsAndDraw(runner, shape, token_ids).grow(tasks)

    runner.grow = grow  # type: ignore[method-assign]
