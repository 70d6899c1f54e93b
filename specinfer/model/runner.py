"""One model and its cache: "append a delta, score a tree" for a batch of requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specinfer.errors import ExhaustedError, SettingError
from specinfer.model.batch import Segment, flatten
from specinfer.model.config import ModelConfig, load_config
from specinfer.model.executor import Executor, make_executor
from specinfer.model.kv_cache import KVSequence, PagedKVCache, blocks_for
from specinfer.model.transformer import Weights
from specinfer.model.weights import SafetensorsWeights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to load and run a model."""

    dtype: str = "bfloat16"
    device: str = "cpu"
    executor: str = "auto"
    attention: str = "reference"
    """Attention backend of the torch executor."""
    kv_tokens: int = 16384
    layers: int | None = None
    """Keep only the first layers (with the model's own final norm and head)."""


class ModelRunner:
    """Runs passes. Not thread-safe: one engine thread owns it."""

    def __init__(self, config: ModelConfig, executor: Executor, cache: PagedKVCache) -> None:
        self.config, self.cache, self._executor = config, cache, executor

    @classmethod
    def load(cls, directory: Path, options: RunnerOptions) -> "ModelRunner":
        """Loads a Hugging Face model directory."""
        return cls.build(load_config(directory), SafetensorsWeights(directory), options)

    @classmethod
    def build(cls, config: ModelConfig, weights: Weights, options: RunnerOptions) -> "ModelRunner":
        """Puts a model together from its configuration and weights.

        Raises:
            SettingError: if an option names something that does not exist.
        """
        if options.dtype not in DTYPES:
            raise SettingError("dtype", options.dtype, f"must be one of {', '.join(DTYPES)}")
        dtype = DTYPES[options.dtype]
        if options.layers is not None:
            config = config.first_layers(options.layers)
        num_blocks = blocks_for(options.kv_tokens)
        executor = make_executor(
            options.executor, config, weights, dtype, num_blocks, options.device, options.attention
        )
        return cls(config, executor, PagedKVCache(num_blocks, executor))

    def open(self) -> KVSequence:
        """A new, empty sequence."""
        return self.cache.open()

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Runs one pass over all segments.

        Every segment's delta becomes context and its nodes become tentative nodes of its sequence.

        Returns:
            Per segment the logits [R, V] in float32: first the one after the last delta token if
            `want_last`, then one per node.

        Raises:
            ExhaustedError: if the cache is full. No sequence has then grown.
        """
        self._reserve(segments)
        batch = flatten(segments)
        logits = self._executor.run(batch)
        for segment in segments:
            if segment.delta:
                self.cache.append(segment.sequence, segment.delta)
            self.cache.add_nodes(segment.sequence, segment.nodes, segment.parents)
        return [logits[start:stop] for start, stop in batch.logit_spans]

    def _reserve(self, segments: Sequence[Segment]) -> None:
        try:
            for segment in segments:
                self.cache.reserve(segment.sequence, len(segment.delta) + len(segment.nodes))
        except ExhaustedError:
            for segment in segments:
                self.cache.trim(segment.sequence)
            raise
