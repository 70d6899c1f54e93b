"""Drafter of random trees, often with the right tokens, so that paths are accepted."""

from collections.abc import Sequence
from random import Random

import numpy as np

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.errors import SpecInferError
from specinfer.request.sampling import GREEDY
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from tests.fuzz.table_target import TableTarget
from tests.support.system import VOCABULARY

_RIGHT = 0.6
"""Probability that the target's token is among a node's children."""


class RandomDrafter:
    """Drafter of random trees with points, and with draws if `draws` is set."""

    def __init__(self, target: TableTarget, rng: Random, draws: bool = False) -> None:
        self._target, self.rng, self._draws = target, rng, draws

    @property
    def description(self) -> DrafterDescription:
        return DrafterDescription(vocab_size=VOCABULARY, draws=self._draws)

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Implement `Drafter.draft`, with an error now and then."""
        return [SpecInferError("no idea") if self.rng.random() < 0.01 else self._tree(job) for job in jobs]

    def release(self, request_id: str) -> None:
        """Implement `Drafter.release`."""

    def _tree(self, job: DraftJob) -> TokenTree:
        builder, context = TreeBuilder(job.context[-1]), list(job.context)
        if job.limits.empty:
            return builder.build()
        depth, node = 0, 0
        while len(builder) <= job.limits.nodes and depth < job.limits.depth and self.rng.random() < 0.85:
            width = min(job.limits.width or 3, job.limits.nodes + 1 - len(builder))
            right = self._target.next_token(context, GREEDY)
            children = self._propose(builder, node, right, width, job)
            if not children:
                break
            node, depth = self.rng.choice(children), depth + 1
            context.append(builder.token_ids[node])
        return builder.build()

    def _propose(self, builder: TreeBuilder, node: int, right: int, width: int, job: DraftJob) -> list[int]:
        tokens = self.rng.sample(range(VOCABULARY), self.rng.randint(1, width))
        if self.rng.random() < _RIGHT and right not in tokens:
            tokens[0] = right
        draws = self._draws and not (job.sees_noise or job.sampling.greedy)
        if not draws or self.rng.random() < 0.3:
            return builder.propose_points(node, tokens, [self.rng.random() for _ in tokens])
        kind = self.rng.choice((ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT))
        ids = list({*tokens, *self.rng.sample(range(VOCABULARY), 4)})
        q = np.full(len(ids), 1 / len(ids), np.float32)
        return builder.propose_samples(node, kind, tokens, (np.array(ids, np.int32), q))
