"""Draft with EAGLE-3 or MTP: one pass of the draft's layer per level of the tree."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch

from specinfer.drafters.feature_rows import FeatureRowsDrafter, RowRunner
from specinfer.drafters.published.eagle3 import EagleSource
from specinfer.drafters.published.mtp import MtpSource
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.batch import Segment, flatten
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import blocks_for
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.stack import DraftStack, DraftWeights, RowsTask
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.formats.base import SMALL_BLOCKS
from specinfer.model.loading import backend_and_weights
from specinfer.model.native.eagle_layer import NativeEagle
from specinfer.model.options import RunnerOptions, check_torch, torch_dtype
from specinfer.system.machine import is_cuda
from specinfer.tree import TokenTree, TreeLimits


class LevelsRunner(RowRunner):
    """Grow trees with one pass of the layer per level."""

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        return shape.scored_nodes(limits)

    @torch.inference_mode()
    def grow(self, tasks: Sequence[RowsTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        passes = _Passes(self._model, self.cache, tasks)
        try:
            return ReferenceGrowth(passes.forward, shape, token_ids).grow([item.task for item in tasks])
        finally:
            for item in tasks:
                self.cache.commit(item.task.sequence, ())


class _Passes:
    """Runs the layer in torch over new context, then over tree levels."""

    def __init__(self, model: DraftStack, cache: PagedKVCache, tasks: Sequence[RowsTask]) -> None:
        self._model, self._cache = model, cache
        self._states = {id(item.task.sequence): model.hidden_of(item.states) for item in tasks}
        self._outs: dict[int, list[torch.Tensor]] = {}
        """Outputs of the last context row and the nodes, by sequence `id`."""

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Return each segment's logits, of its last context row or its nodes."""
        batch = flatten(segments)
        outputs = self._model.run(batch, torch.cat([self._hidden(segment) for segment in segments]))
        for segment, part in zip(segments, batch.rows, strict=True):
            rows = outputs[part.start : part.stop]
            if segment.delta:
                self._outs[id(segment.sequence)] = [rows[-1]]
                self._cache.append(segment.sequence, segment.delta)
            else:
                self._outs[id(segment.sequence)].extend(rows)
            self._cache.add_nodes(segment.sequence, segment.nodes, segment.parents)
        logits = self._model.logits(outputs[batch.logit_rows])
        return [logits[start:stop] for start, stop in batch.logit_spans]

    def _hidden(self, segment: Segment) -> torch.Tensor:
        """Return a segment's hidden states [rows, hidden].

        A context row reads the target's hidden state, a node's row its parent's output.
        """
        if segment.delta:
            return self._states[id(segment.sequence)]
        outs = self._outs[id(segment.sequence)]
        return torch.stack([outs[parent + 1] for parent in segment.parents])


def check_eagle(options: RunnerOptions) -> None:
    """Check the options for running an EAGLE layer; a GPU runs it in torch."""
    if is_cuda(options.device):
        check_torch(options, "an EAGLE layer on a GPU")
    elif options.executor not in ("auto", "native", "torch"):
        raise SettingError("executor", options.executor, "must be native, torch or auto for an EAGLE layer")


class EagleRunner(LevelsRunner):
    """Grow trees of EAGLE in torch, or in one call of the kernels."""

    def __init__(self, model: DraftStack | NativeEagle, num_blocks: int) -> None:
        self._native = model if isinstance(model, NativeEagle) else None
        if not isinstance(model, NativeEagle):
            super().__init__(model, num_blocks)
        self.cache = PagedKVCache(num_blocks, model)

    @classmethod
    def build(cls, weights: DraftWeights, options: RunnerOptions) -> Self:
        check_eagle(options)
        if is_cuda(options.device):
            return super().build(weights, options)
        if weights.four_bits:
            options = replace(options, numbers_as=SMALL_BLOCKS)
        backend, in_format = backend_and_weights(weights.config, weights.tensors, options)
        if backend.name != "native":
            return super().build(weights, options)
        dtype, blocks = torch_dtype(options.dtype), blocks_for(options.kv_tokens)
        try:
            return cls(NativeEagle(weights, in_format, dtype, blocks, options.kv_type), blocks)
        except KeyError as error:
            raise IncompatibleError(f"the model's weights lack {error.args[0]}") from error

    @torch.inference_mode()
    def grow(self, tasks: Sequence[RowsTask], shape: GrowthShape, token_ids: torch.Tensor) -> list[TokenTree]:
        if self._native is None:
            return super().grow(tasks, shape, token_ids)
        trees = self._native.grow(tasks, shape, token_ids)
        for item in tasks:
            self.cache.append(item.task.sequence, item.task.delta)
            self.cache.trim(item.task.sequence)
        return trees


class EagleDrafter(FeatureRowsDrafter):
    """Draft with an EAGLE-3 layer."""

    kind, runner = EagleSource, EagleRunner

    @classmethod
    def check(cls, options: RunnerOptions) -> None:
        check_eagle(options)


class MtpDrafter(FeatureRowsDrafter):
    """Draft with an MTP layer."""

    kind, runner = MtpSource, LevelsRunner
