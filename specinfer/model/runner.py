"""Runs passes of one model with its cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from specinfer.errors import ExhaustedError, SettingError
from specinfer.model.arrays import Array, as_tensor
from specinfer.model.batch import PassFeatures, Segment, flatten
from specinfer.model.cache.feature_store import FeatureStore
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.prefix_directory import PrefixDirectory
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, KVWindow
from specinfer.model.drafting.task import Grower, GrowthShape, GrowthTask
from specinfer.model.executor import Executor, Logits, RecurrentExecutor
from specinfer.model.formats.weights_in_format import NOT_COUNTED, WeightFormats
from specinfer.model.lazy_torch import torch
from specinfer.model.loading import build_model, wrap_model
from specinfer.model.options import RunnerOptions
from specinfer.model.parallel.layout import RankMemory
from specinfer.model.sampling.choices import Chooser
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights
from specinfer.model.weights.trimmed import TrimmedHead
from specinfer.tree import TokenTree

if TYPE_CHECKING:
    from specinfer.model.parallel.executor import ParallelExecutor
    from specinfer.model.parallel.ranks import Ranks

log = logging.getLogger(__name__)


class ModelRunner:
    """Runs passes of one model, with its KV cache. Not thread-safe."""

    def __init__(
        self,
        config: ModelConfig,
        executor: Executor,
        num_blocks: int,
        window: KVWindow | None = None,
        weights: WeightFormats = NOT_COUNTED,
        head: TrimmedHead | None = None,
    ) -> None:
        self.config, self._executor = config, executor
        self.head, self.weights = head, weights
        self.features = FeatureStore(executor, num_blocks * BLOCK_TOKENS)
        """Hidden states of cached tokens, for layers set by `keep_features`."""
        states = executor.recurrent_states if isinstance(executor, RecurrentExecutor) else None
        self.cache = PagedKVCache(num_blocks, self.features, window, states)
        self._reference_logged = False

    @classmethod
    def wrap(cls, model: Any, hf: Any, options: RunnerOptions, generation: Any | None = None) -> ModelRunner:
        """Run a `transformers` model object with the generic executor."""
        return cls(*wrap_model(model, hf, options, generation))

    @classmethod
    def build(
        cls, config: ModelConfig, weights: Weights, options: RunnerOptions, ranks: Ranks | None = None
    ) -> ModelRunner:
        return cls(*build_model(config, weights, options, ranks))

    @property
    def parallel(self) -> ParallelExecutor | None:
        """Executor of a model divided among ranks; None: there is one rank."""
        return self._executor if _is_parallel(self._executor) else None

    @property
    def memory(self) -> list[RankMemory]:
        """Memory of each rank; empty if the executor does not report memory."""
        executor: Any = self._executor
        if _is_parallel(executor):
            return executor.memory
        alone = self.executor_name in ("torch", "gpu")
        return [RankMemory(executor.weight_bytes, executor.cache_bytes)] if alone else []

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values in this process; 0: not reported."""
        return int(getattr(self._executor, "cache_bytes", 0))

    @property
    def executor_name(self) -> str:
        """Name of the executor, a key of `BACKENDS`."""
        return self._executor.name

    @property
    def chooser(self) -> Chooser | None:
        """Executor that can choose tokens on its device; None: the host chooses."""
        return self._executor if isinstance(self._executor, Chooser) else None

    def keep_prefixes(self, directory: Path, fingerprint: str, limit_bytes: int) -> PrefixDirectory:
        """Keep cached prefixes in a directory, for models of the same fingerprint."""
        field, blocks = "prefix_cache_directory", self.features.blocks
        if blocks is None:
            reason = f"the {self.executor_name} executor stores no prefixes; needs --executor native"
            raise SettingError(field, str(directory), reason)
        if self.cache.window is not None:
            raise SettingError(field, str(directory), "must be empty with a windowed cache (kv_window)")
        if self.cache.states is not None:
            raise SettingError(field, str(directory), "must be empty for models with recurrent layers")
        prefixes = PrefixDirectory(directory, f"{fingerprint} {blocks.block_layout}", limit_bytes)
        self.cache.pool.keep_prefixes(prefixes, blocks)
        return prefixes

    def open(self, scope: str = "") -> KVSequence:
        return self.cache.open(scope)

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Run one pass over all segments.

        Then each segment's delta is context, and its nodes are tentative nodes of its sequence.

        Returns:
            Per segment the float32 logits [R, V]: a row after the last delta token if `want_last`, then one per node.
        """
        return list(map(as_tensor, self.run(segments)))

    def run(self, segments: Sequence[Segment]) -> list[Logits]:
        """Run one pass like `forward`; return the executor's own logits."""
        with self._inference():
            return self._run(segments, self.features.layers)[0]

    def forward_with_features(
        self, segments: Sequence[Segment], layers: Sequence[int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Run one pass; return logits as `forward`, and hidden states per segment.

        The states are bfloat16 [tokens, len(layers), hidden], after `layers` layers each. `layers` must ascend.
        """
        self.check_layers(layers)
        with self._inference():
            logits, features = self._run(segments, tuple(layers))
        return list(map(as_tensor, logits)), features

    def keep_features(self, layers: Sequence[int]) -> None:
        """Store states after these layers in `features` from now on; empty: stop."""
        self.check_layers(layers)
        self.features.keep(layers, self.config.hidden_size)

    def check_layers(self, layers: Sequence[int]) -> None:
        """Check that passes can return hidden states after these numbers of layers."""
        feature_layers = self.feature_layers
        if layers and not feature_layers:
            raise SettingError(
                "features",
                list(layers),
                f"the {self.executor_name} executor returns no hidden states: choose another executor or --draft",
            )
        if list(layers) != sorted({layer for layer in layers if 0 <= layer <= feature_layers}):
            raise SettingError(
                "features", list(layers), f"must ascend from 0 to the model's {feature_layers} layers"
            )

    @property
    def feature_layers(self) -> int:
        """Number of layers whose hidden states can be returned; 0: none can."""
        return 0 if self.executor_name == "generic" else self.config.layers

    def _run(
        self, segments: Sequence[Segment], layers: tuple[int, ...]
    ) -> tuple[list[Logits], list[torch.Tensor]]:
        self._reserve(segments)
        batch = flatten(segments)
        if layers:
            shape = (len(batch.token_ids), len(layers), self.config.hidden_size)
            batch = replace(batch, features=PassFeatures(layers, np.empty(shape, np.float32)))
        logits = self._executor.run(batch)
        features = []
        if batch.features is None:
            if self.features.layers:
                self.features.forget(batch.write_slots)
        else:
            states = torch.from_numpy(batch.features.states).to(torch.bfloat16)
            features = [states[part.start : part.stop] for part in batch.rows]
            if layers == self.features.layers:
                self.features.write(batch.write_slots, states.view(torch.int16).numpy())
        for segment in segments:  # last, so that after an error all sequences are unchanged
            if segment.delta:
                self.cache.append(segment.sequence, segment.delta)
            self.cache.add_nodes(segment.sequence, segment.nodes, segment.parents)
        return [logits[start:stop] for start, stop in batch.logit_spans], features

    def grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: Array) -> list[TokenTree]:
        """Add each task's delta to its context, and grow its tree.

        Tree nodes do not stay in the cache. `shape.scored_nodes` nodes must be reserved.
        """
        if isinstance(self._executor, Grower) and self._grows(self._executor, tasks, shape):
            with self._inference():
                trees = self._executor.grow(tasks, shape, token_ids)
            for task in tasks:
                self.cache.append(task.sequence, task.delta)
                self.cache.trim(task.sequence)
            return trees
        from specinfer.model.drafting.expansion import ReferenceGrowth

        try:
            return ReferenceGrowth(self.forward, shape, as_tensor(token_ids)).grow(tasks)
        finally:
            for task in tasks:
                self.cache.commit(task.sequence, ())

    def _inference(self) -> AbstractContextManager[object]:
        """Return torch's inference mode, or nothing for the kernels."""
        return nullcontext() if self.executor_name == "native" else torch.inference_mode()

    def _grows(self, grower: Grower, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        if grower.can_grow(tasks, shape):
            return True
        if not self._reference_logged:
            self._reference_logged = True
            log.warning(
                "the %s executor does not grow such trees (proposal %s, expansion %s, beam %d): "
                "they are grown level by level, which is slower",
                *(self.executor_name, shape.kind.name.lower(), shape.expansion, shape.beam),
            )
        return False

    def _reserve(self, segments: Sequence[Segment]) -> None:
        try:
            for segment in segments:
                delta, nodes = len(segment.delta), len(segment.nodes)
                self.cache.reserve(segment.sequence, delta, nodes, segment.parents)
        except ExhaustedError:
            for segment in segments:
                self.cache.trim(segment.sequence)
            raise


def _is_parallel(executor: Executor) -> TypeGuard[ParallelExecutor]:
    return hasattr(executor, "stage_seconds")
