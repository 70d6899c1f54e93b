"""Medusa drafts: heads that read the target's newest hidden state, each of a token further ahead.

A request whose newest hidden state has not come has no draft in that step. Nothing is kept of any request: a
service that has forgotten one drafts again as soon as the newest hidden state comes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.ssm import growth_task, shape_of
from specinfer.errors import SpecInferError
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.heads import HeadsRunner
from specinfer.model.options import RunnerOptions
from specinfer.model.weights.families import open_weights
from specinfer.model.weights.heads_checkpoint import HeadsSource, MedusaSource
from specinfer.tree import ProposalKind, TokenTree, TreeLimits


class HeadsDrafter:
    """Drafts with heads of one kind."""

    kind: ClassVar[type[HeadsSource]]

    def __init__(
        self,
        runner: HeadsRunner,
        description: DrafterDescription,
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> None:
        self._runner, self._shape, self._token_ids = runner, shape, token_ids.to(torch.int32)
        self._description = replace(description, draws=shape.kind is not ProposalKind.POINT)

    @classmethod
    def from_options(cls, options: DrafterOptions) -> Self:
        """Load a checkpoint of its kind.

        Raises:
            SettingError: naming the bad option.
        """
        shape, trained = shape_of(options), load_trained(options, cls.kind)
        config, heads = trained.config, trained.draft
        run_as = RunnerOptions(options.dtype, options.device, options.executor, weights=options.weights)
        runner = HeadsRunner.build(heads, config, open_weights(trained.target, config), run_as)
        description = replace(
            trained.description, feature_layers=(config.layers,), feature_size=config.hidden_size
        )
        return cls(runner, description, shape, heads.token_ids)

    @property
    def description(self) -> DrafterDescription:
        """Description of the checkpoint."""
        return self._description

    def release(self, request_id: str) -> None:
        """Do nothing: no state is kept."""

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Draft one tree per job, in order."""
        newest = {i: state for i, job in enumerate(jobs) if (state := newest_state(job)) is not None}
        trees: list[TokenTree | SpecInferError] = [TokenTree.root_only(job.context[-1]) for job in jobs]
        if newest:
            states = torch.from_numpy(np.stack(list(newest.values()))).view(torch.bfloat16)
            tasks = [self._task(jobs[i]) for i in newest]
            grown = self._runner.grow(tasks, states, self._shape, self._token_ids)
            for i, tree in zip(newest, grown, strict=True):
                trees[i] = tree
        return trees

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return the limits of the tree that is grown for the requested limits."""
        return self._shape.limits(asked)

    def _task(self, job: DraftJob) -> GrowthTask:
        root, limits = job.context[-1:], self.limits(job.limits)
        return growth_task(self._shape, job, KVSequence(), root, limits, offset=len(job.context) - 1)


class MedusaDrafter(HeadsDrafter):
    """Drafts a tree whose levels are the top tokens of Medusa's heads."""

    kind = MedusaSource


def newest_state(job: DraftJob) -> NDArray[np.int16] | None:
    """Return the hidden state [hidden] of the token before the root as bfloat16 bits, if the job has it."""
    came, place = job.features, len(job.context) - 2
    if job.limits.empty or came is None or not came.start <= place < came.stop:
        return None
    state: NDArray[np.int16] = came.states[place - came.start, -1]
    return state
