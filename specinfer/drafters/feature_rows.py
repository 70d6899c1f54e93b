"""Base of drafters that cache a KV row per target hidden state.

Hidden states arrive one step after their tokens. A request gets no draft while its newest states are missing. After a
gap in the states, the request's cached rows are dropped, and new rows start after the gap.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob, Features
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.growth import GrowingDrafter, growth_task, runner_options, shape_of
from specinfer.drafters.published.tensors import PublishedSource
from specinfer.model.arrays import as_tensor
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence, blocks_for
from specinfer.model.drafting.stack import DraftStack, DraftWeights, RowsTask
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.options import RunnerOptions, check_torch, torch_dtype
from specinfer.tree import TokenTree, TreeLimits


class RowRunner(ABC):
    """Reads new context rows with a draft's layers, and grows trees. Not thread-safe."""

    def __init__(self, model: DraftStack, num_blocks: int) -> None:
        self._model, self.cache = model, PagedKVCache(num_blocks, model)

    @classmethod
    def build(cls, weights: DraftWeights, options: RunnerOptions) -> Self:
        """Combine layers and cache."""
        blocks = blocks_for(options.kv_tokens)
        return cls(DraftStack(weights, torch_dtype(options.dtype), options.device, blocks), blocks)

    @abstractmethod
    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        """Return the number of temporary cache rows that a growing tree needs."""

    @abstractmethod
    def grow(self, tasks: Sequence[RowsTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        """Read every task's new rows and grow its tree, in order.

        Temporary rows are dropped afterwards. Callers must have reserved `rows_ahead` rows.
        """


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


class FeatureRowsDrafter(GrowingDrafter[RowsTask]):
    """Draft with a checkpoint of one kind."""

    kind: ClassVar[type[PublishedSource]]
    runner: ClassVar[type[RowRunner]]

    def __init__(
        self,
        runner: RowRunner,
        description: DrafterDescription,
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> None:
        super().__init__(description, shape, token_ids)
        self._runner = runner
        self._cached: dict[str, _CachedContext] = {}

    @classmethod
    def from_options(cls, options: DrafterOptions) -> Self:
        """Load a checkpoint."""
        shape, run_as = shape_of(options), runner_options(options)
        cls.check(run_as)
        trained = load_trained(options, cls.kind)
        weights, config = trained.draft.weights, trained.config
        description = replace(
            trained.description,
            feature_layers=tuple(sorted(weights.layers)),
            feature_size=config.hidden_size,
            max_context_len=min(config.max_positions, weights.config.max_positions),
        )
        return cls(cls.runner.build(weights, run_as), description, shape, trained.draft.token_ids)

    @classmethod
    def check(cls, options: RunnerOptions) -> None:
        """Check the options before a checkpoint is read."""
        check_torch(options, f"a draft of {cls.kind.algorithm}")

    def release(self, request_id: str) -> None:
        cached = self._cached.pop(request_id, None)
        if cached is not None:
            self._runner.cache.release(cached.sequence)

    def _grow(self, tasks: list[RowsTask]) -> list[TokenTree]:
        return self._runner.grow(tasks, self._shape, as_tensor(self._token_ids))

    def _task(self, job: DraftJob) -> RowsTask | None:
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
        return RowsTask(task, states.view(torch.bfloat16))

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
