"""Draft with heads: Medusa and blockwise parallel decoding.

All heads read the target's newest hidden state; head i predicts the token i places after the root. A request without
its newest hidden state gets no draft in a step. The drafter stores no state of requests.

Blockwise: k heads propose one chain, and the pass that verifies the chain returns the hidden state of the next draft.
The first token of a block is the root, which the target chose. In the ideal case m tokens take one pass for the prompt
and m / (k + 1) further passes. With a Markov head, logits depend on the previous token, and the heads grow trees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.growth import GrowingDrafter, growth_task, runner_options, shape_of
from specinfer.drafters.heads_layers import (
    BlockwiseSource,
    Heads,
    HeadsSource,
    MedusaSource,
    tensors_of_target,
)
from specinfer.model.arrays import as_tensor
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.levels import grow_edges, grow_levels
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.options import RunnerOptions, check_torch, torch_dtype
from specinfer.model.torch.parts import Parts
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import open_weights
from specinfer.tree import TokenTree, TreeLimits


class HeadsRunner:
    """Grow trees for a batch. Not thread-safe."""

    def __init__(self, heads: Heads, dtype: torch.dtype, device: str) -> None:
        self._heads, self._dtype, self._device = heads, dtype, device

    @classmethod
    def build(
        cls,
        source: HeadsSource,
        config: ModelConfig,
        target: Mapping[str, torch.Tensor],
        options: RunnerOptions,
    ) -> "HeadsRunner":
        """Combine the heads with tensors of their target."""
        check_torch(options, "heads", "are")
        dtype = torch_dtype(options.dtype)
        kind, markov = type(source), source.markov
        tensors = {**source.tensors, **tensors_of_target(kind, config, target, source.token_ids, markov)}
        parts = Parts(config, tensors, dtype, options.device)
        return cls(Heads(kind, source.count, config, parts, markov), dtype, options.device)

    @property
    def knows_paths(self) -> bool:
        """True if a Markov head makes logits depend on the path."""
        return self._heads.markov is not None

    @torch.inference_mode()
    def grow(
        self,
        tasks: Sequence[GrowthTask],
        states: torch.Tensor,
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> list[TokenTree]:
        """Grow one tree per task from the newest hidden `states` [tasks, hidden]."""
        outs = self._heads.outs(states.to(self._device, self._dtype))
        levels = [rows.float() for rows in self._heads.logits(outs.unbind(1))]
        markov = self._heads.markov
        if markov is not None:
            return grow_edges(
                tasks,
                levels,
                lambda _, owners, ids, states: (markov(ids.to(self._device)).float(), None),
                shape,
                token_ids,
            )
        return [
            grow_levels(task, [rows[i] for rows in levels], shape, token_ids) for i, task in enumerate(tasks)
        ]


class HeadsDrafter(GrowingDrafter[tuple[NDArray[np.int16], GrowthTask]]):
    kind: ClassVar[type[HeadsSource]]

    def __init__(
        self,
        runner: HeadsRunner,
        description: DrafterDescription,
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> None:
        super().__init__(description, shape, token_ids)
        self._runner = runner

    @classmethod
    def from_options(cls, options: DrafterOptions) -> Self:
        """Load a checkpoint of this kind."""
        shape, trained = shape_of(options), load_trained(options, cls.kind)
        config, heads = trained.config, trained.draft
        target = open_weights(trained.target, config)
        runner = HeadsRunner.build(heads, config, target, runner_options(options))
        description = replace(
            trained.description, feature_layers=(config.layers,), feature_size=config.hidden_size
        )
        return cls(runner, description, shape, heads.token_ids)

    def release(self, request_id: str) -> None:
        """Do nothing: the drafter stores no state of requests."""

    def _grow(self, tasks: list[tuple[NDArray[np.int16], GrowthTask]]) -> list[TokenTree]:
        states = torch.from_numpy(np.stack([state for state, _ in tasks])).view(torch.bfloat16)
        return self._runner.grow([task for _, task in tasks], states, self._shape, as_tensor(self._token_ids))

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return the limits, restricted to trees that these heads can draft."""
        return self._shape.limits(asked)

    def _task(self, job: DraftJob) -> tuple[NDArray[np.int16], GrowthTask] | None:
        state = newest_state(job)
        if state is None:
            return None
        root, limits = job.context[-1:], self.limits(job.limits)
        return state, growth_task(self._shape, job, KVSequence(), root, limits, offset=len(job.context) - 1)


class MedusaDrafter(HeadsDrafter):
    """Draft a tree: level i has top tokens of head i."""

    kind = MedusaSource


def newest_state(job: DraftJob) -> NDArray[np.int16] | None:
    """Return the hidden state before the root: [hidden] bits of bfloat16.

    None if the state was not received, or the job's limits allow no nodes.
    """
    came, place = job.features, len(job.context) - 2
    if job.limits.empty or came is None or not came.start <= place < came.stop:
        return None
    state: NDArray[np.int16] = came.states[place - came.start, -1]
    return state


class BlockwiseDrafter(HeadsDrafter):
    """Draft a chain of the heads' best tokens, or a tree."""

    kind = BlockwiseSource

    def limits(self, asked: TreeLimits) -> TreeLimits:
        """Return a chain's limits, or a tree's with a Markov head."""
        return super().limits(asked) if self._runner.knows_paths else replace(asked, width=1)
