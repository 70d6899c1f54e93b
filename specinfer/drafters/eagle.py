"""Draft with EAGLE-3: a decoder layer over the target's hidden states."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from specinfer.drafters import DrafterOptions
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.feature_rows import FeatureRowsDrafter
from specinfer.drafters.published.eagle3 import EagleSource
from specinfer.drafters.ssm import runner_options, shape_of
from specinfer.errors import SettingError
from specinfer.model.batch import Batch, Segment, flatten
from specinfer.model.cache.kv_cache import KVStorage, PagedKVCache
from specinfer.model.cache.sequence import blocks_for
from specinfer.model.drafting.eagle_layer import EagleModel, EagleTask, EagleWeights
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.loading import backend_and_weights
from specinfer.model.native.eagle_layer import NativeEagle
from specinfer.model.options import DTYPES, RunnerOptions
from specinfer.model.weights.families import EMBEDDING, open_weights
from specinfer.tree import TokenTree, TreeLimits


class RowModel(KVStorage, Protocol):
    """Draft layer; each row reads a hidden state and the next token."""

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        """Map target states [T, layers, hidden] to rows' inputs [T, hidden]."""

    def run(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows' outputs [T, hidden], hidden states of their children."""

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""


class EagleRunner:
    """Grow trees for a batch. Not thread-safe."""

    def __init__(self, model: RowModel | NativeEagle, num_blocks: int) -> None:
        self._model, self.cache = model, PagedKVCache(num_blocks, model)

    @classmethod
    def build(cls, weights: EagleWeights, options: RunnerOptions) -> "EagleRunner":
        """Combine layer and cache."""
        if options.executor not in ("auto", "native", "torch"):
            raise SettingError(
                "executor", options.executor, "must be native, torch or auto for an EAGLE layer"
            )
        dtype, blocks = DTYPES[options.dtype], blocks_for(options.kv_tokens)
        whole = {**weights.tensors, EMBEDDING: weights.embedding}
        backend, in_format = backend_and_weights(weights.config, whole, options)
        if backend.name == "native":
            return cls(NativeEagle(weights, in_format, dtype, blocks, options.kv_type), blocks)
        return cls(EagleModel(weights, dtype, options.device, blocks), blocks)

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        """Return the number of cache rows that a growing tree needs."""
        return shape.scored_nodes(limits)

    @torch.inference_mode()
    def grow(
        self, tasks: Sequence[EagleTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Read every task's new rows and grow its tree, in order.

        Rows of nodes are dropped afterwards. Callers must have reserved `rows_ahead` rows.
        """
        if isinstance(self._model, NativeEagle):
            trees = self._model.grow(tasks, shape, token_ids)
            for item in tasks:
                self.cache.append(item.task.sequence, item.task.delta)
                self.cache.trim(item.task.sequence)
            return trees
        passes = _Passes(self._model, self.cache, tasks)
        try:
            return ReferenceGrowth(passes.forward, shape, token_ids).grow([item.task for item in tasks])
        finally:
            for item in tasks:
                self.cache.commit(item.task.sequence, ())


class _Passes:
    """Runs the layer in torch over new context, then over tree levels."""

    def __init__(self, model: RowModel, cache: PagedKVCache, tasks: Sequence[EagleTask]) -> None:
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


class EagleDrafter(FeatureRowsDrafter):
    """Draft with a trained EAGLE-3 layer."""

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "EagleDrafter":
        """Load a checkpoint in the `speculators` format."""
        shape = shape_of(options)
        trained = load_trained(options, EagleSource)
        eagle, config, embedding = trained.draft, trained.config, trained.draft.embedding
        if embedding is None:
            embedding = open_weights(trained.target, config)[EMBEDDING]
        layer_config = eagle.shape or config
        shape_of_layer = replace(
            layer_config, layers=1, vocab_size=len(eagle.token_ids), tied_embeddings=False
        )
        weights = EagleWeights(shape_of_layer, eagle.tensors, embedding, eagle.norm_before_residual)
        runner = EagleRunner.build(weights, runner_options(options))
        description = replace(
            trained.description,
            feature_layers=eagle.layers,
            feature_size=config.hidden_size,
            max_context_len=min(config.max_positions, layer_config.max_positions),
        )
        return cls(runner, description, shape, eagle.token_ids)
