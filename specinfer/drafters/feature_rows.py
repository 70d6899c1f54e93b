"""Base of drafters that cache a KV row per target hidden state.

Hidden states arrive one step after their tokens. A request gets no draft while its newest states are missing. After a
gap in the states, the request's cached rows are dropped, and new rows start after the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from specinfer.drafters import DrafterDescription, DraftJob, Features
from specinfer.drafters.growth import growth_task
from specinfer.errors import ExhaustedError, SpecInferError
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.eagle_layer import EagleTask
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import ProposalKind, TokenTree, TreeLimits


class RowRunner(Protocol):
    """Runs a draft layer: reads new context rows and grows trees."""

    cache: PagedKVCache

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        """Return the number of temporary cache rows that a growing tree needs."""

    def grow(
        self, tasks: Sequence[EagleTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Read every task's new rows and grow its tree, in order."""


@dataclass(slots=True)
class _CachedContext:
    sequence: KVSequence
    start: int
    """Context position of the first row's hidden state."""
    waiting: Features | None = None
    """Hidden states received but not read into rows yet."""

    @property
    def rows(self) -> int:
        return self.start + self.sequence.length


class FeatureRowsDrafter:
    """Draft with a checkpoint of one kind."""

    def __init__(
        self,
        runner: RowRunner,
        description: DrafterDescription,
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> None:
        self._runner, self._shape = runner, shape
        self._description = replace(description, draws=shape.kind is not ProposalKind.POINT)
        self._token_ids = token_ids.to(torch.int32)
        self._cached: dict[str, _CachedContext] = {}

    @property
    def description(self) -> DrafterDescription:
        return self._description

    def release(self, request_id: str) -> None:
        cached = self._cached.pop(request_id, None)
        if cached is not None:
            self._runner.cache.release(cached.sequence)

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        results: dict[int, TokenTree | SpecInferError] = {}
        tasks: dict[int, EagleTask] = {}
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
            trees = self._runner.grow(list(tasks.values()), self._shape, self._token_ids)
            results.update(zip(tasks, trees, strict=True))
        return [results[index] for index in range(len(jobs))]

    def _task(self, job: DraftJob) -> EagleTask | None:
        """Return a job's new rows and tree limits; None without new rows."""
        cached = self._arrived(job)
        if cached is None or cached.waiting is None:
            return None
        # row j stores token j + 1, so the context has one row less than tokens
        rows = min(cached.waiting.stop, len(job.context) - 1) - cached.rows
        if rows <= 0:
            return None
        complete = cached.rows + rows == len(job.context) - 1
        limits = self._shape.limits(job.limits) if complete else TreeLimits(0, 0)
        self._runner.cache.reserve(cached.sequence, rows + self._runner.rows_ahead(self._shape, limits))
        delta = job.context[cached.rows + 1 : cached.rows + 1 + rows]
        first = cached.rows - cached.waiting.start
        states = torch.from_numpy(np.ascontiguousarray(cached.waiting.states[first : first + rows]))
        left = cached.waiting.states[first + rows :]
        cached.waiting = Features(cached.rows + rows, left) if len(left) else None
        task = growth_task(self._shape, job, cached.sequence, delta, limits, offset=cached.start + 1)
        return EagleTask(task, states.view(torch.bfloat16))

    def _arrived(self, job: DraftJob) -> _CachedContext | None:
        """Store a job's hidden states; return the request's state."""
        cached, came = self._cached.get(job.request_id), job.features
        if came is None or not len(came.states):
            return cached
        if cached is not None and cached.waiting is not None and cached.waiting.stop == came.start:
            states = np.concatenate([cached.waiting.states, came.states])
            cached.waiting = Features(cached.waiting.start, states)
        elif cached is not None and cached.waiting is None and cached.rows == came.start:
            cached.waiting = came
        else:  # the first states, or the first ones after a gap
            self.release(job.request_id)
            cached = self._cached[job.request_id] = _CachedContext(
                self._runner.cache.open(), came.start, came
            )
        return cached
