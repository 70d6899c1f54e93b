"""Base of drafters whose trees grow: options, tasks and batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.errors import ExhaustedError, SettingError, SpecInferError
from specinfer.model.arrays import Array, as_ids
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.formats.base import SMALL_BLOCKS
from specinfer.model.options import RunnerOptions
from specinfer.options.model_options import AUTO
from specinfer.request.sampling import GREEDY
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits

_DRAFT_FORMAT = "q8_0"
"""Weight format of `auto` for a checkpoint without block formats."""
FILE_FORMAT = "file"
"""Value of a draft's `weights`: the format of its file, unchanged."""
T = TypeVar("T")
PROPOSALS = {kind.name.lower(): kind for kind in ProposalKind}
"""Values of the option `proposal`: kinds of children for sampled requests."""


class GrowingDrafter(ABC, Generic[T]):
    """Drafter whose trees grow together, from a task of each request."""

    def __init__(self, description: DrafterDescription, shape: GrowthShape, token_ids: Array) -> None:
        """Create the drafter; `token_ids`: [draft vocabulary] target token of each draft token."""
        self._shape = shape
        self.description = replace(description, draws=shape.kind is not ProposalKind.POINT)
        self._token_ids = as_ids(token_ids).copy()

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        results: dict[int, TokenTree | SpecInferError] = {}
        tasks: dict[int, T] = {}
        for index, job in enumerate(jobs):
            try:
                task = self._task(job)
            except ExhaustedError as error:
                self.release(job.request_id)
                results[index] = error
                continue
            if task is None:
                results[index] = TokenTree.root_only(job.context[-1])
            else:
                tasks[index] = task
        if tasks:
            results.update(zip(tasks, self._grow(list(tasks.values())), strict=True))
        return [results[index] for index in range(len(jobs))]

    @abstractmethod
    def release(self, request_id: str) -> None:
        """Drop a request's state."""

    @abstractmethod
    def _task(self, job: DraftJob) -> T | None:
        """Return a job's task; None: no draft in this step."""

    @abstractmethod
    def _grow(self, tasks: list[T]) -> list[TokenTree]:
        """Return the tasks' trees, in order."""


def growth_task(
    shape: GrowthShape,
    job: DraftJob,
    sequence: KVSequence,
    delta: Sequence[int],
    limits: TreeLimits,
    offset: int = 0,
) -> GrowthTask:
    """Return a job's growth task, seeded for the drafter's or target's draws."""
    if shape.draws(job.sampling):
        sampling = replace(job.sampling, seed=job.draw_seed)
        return GrowthTask(sequence, delta, limits, sampling, offset=offset)
    if job.sees_noise or job.sampling.greedy:
        return GrowthTask(sequence, delta, limits, job.sampling, offset=offset)
    return GrowthTask(sequence, delta, limits, GREEDY, blind=job.sampling.temperature, offset=offset)


def runner_options(options: DrafterOptions) -> RunnerOptions:
    """Return the options for loading and running a drafter's model."""
    if options.weights == FILE_FORMAT:
        return RunnerOptions.of(options, weights=AUTO)
    return RunnerOptions.of(options, numbers_as=_DRAFT_FORMAT, blocks_as=SMALL_BLOCKS)


def shape_of(options: DrafterOptions) -> GrowthShape:
    """Read the options of tree growth."""
    if options.proposal not in PROPOSALS:
        raise SettingError("proposal", options.proposal, f"must be one of {', '.join(PROPOSALS)}")
    expansion = ExpansionVector.parse(options.expansion) if options.expansion else None
    return GrowthShape(
        expansion=expansion,
        beam=options.beam,
        deepest=options.depth,
        min_path_probability=options.min_path_probability,
        kind=PROPOSALS[options.proposal],
    )
