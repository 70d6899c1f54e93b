"""One model and its cache: "append a delta, score a tree" for a batch of requests."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specinfer.errors import ExhaustedError, IncompatibleError, SettingError
from specinfer.model.batch import Features, Segment, flatten
from specinfer.model.cache.feature_store import FeatureStore
from specinfer.model.cache.kv_cache import CACHE_TOKENS, PagedKVCache
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, blocks_for
from specinfer.model.cache.window import KVWindow
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.task import Grower, GrowthShape, GrowthTask
from specinfer.model.executors.executor import EXECUTORS, Executor, TorchExecutor, make_executor
from specinfer.model.layers.transformer import Weights
from specinfer.model.offload.stores import OFFLOADS, open_store
from specinfer.model.parallel.executor import ParallelExecutor, RankMemory, parallel_executor
from specinfer.model.parallel.ranks import Ranks
from specinfer.model.sampling.choices import Chooser
from specinfer.model.weights.config import ModelConfig, from_transformers, load_transformers_config
from specinfer.model.weights.convert import KEPT_GGUF
from specinfer.model.weights.families import in_llama_names
from specinfer.model.weights.files import GgufWeights, SafetensorsWeights
from specinfer.model.weights.quantise import BLOCK_TYPES, QuantisedWeights
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)
WEIGHTS = ("converted", "native", *BLOCK_TYPES, "fp8")
DEVICE_WEIGHTS = ("converted", "int8", "fp8")
"""Of the device executor."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How to load and run a model."""

    dtype: str = "bfloat16"
    device: str = "cpu"
    executor: str = "auto"
    attention: str = "reference"
    """Attention backend of the torch executor."""
    kv_tokens: int = CACHE_TOKENS
    weights: str = "converted"
    """"native" keeps the quantised blocks of the model's GGUF file; "int8", "int4" and "w8a8" quantise while
    loading (`quantise.py`). All four need the native executor in bfloat16. The device executor has an "int8"
    of its own, and "fp8"."""
    layers: int | None = None
    """Keep only the first layers (with the model's own final norm and head)."""
    kv_window: int = 0
    """Keep only so many context tokens per request (StreamingLLM); lossy. 0 keeps all."""
    kv_sinks: int = 4
    """First tokens a windowed cache never drops."""
    offload: str = "none"
    """Where the decoder layers lie, if not on the device: "host" or "disk" (`offload.stores`)."""
    offload_directory: str = ""
    """Of "disk"; empty: the cache directory."""


def holds_blocks(dtype: str, executor: str) -> bool:
    """Whether a model so loaded can hold quantised matrices: only the native executor does, in bfloat16."""
    return dtype == "bfloat16" and executor in ("auto", "native")


def check_options(options: RunnerOptions) -> None:
    """Checks the names among the options.

    Raises:
        SettingError: naming the bad one.
    """
    if options.dtype not in DTYPES:
        raise SettingError("dtype", options.dtype, f"must be one of {', '.join(DTYPES)}")
    if options.weights not in WEIGHTS:
        raise SettingError("weights", options.weights, f"must be one of {', '.join(WEIGHTS)}")
    if options.executor not in EXECUTORS:
        raise SettingError("executor", options.executor, f"must be one of {', '.join(EXECUTORS)}")
    if options.offload not in OFFLOADS:
        raise SettingError("offload", options.offload, f"must be one of {', '.join(OFFLOADS)}")
    if options.offload != "none" and options.executor not in ("auto", "native", "torch"):
        raise SettingError("offload", options.offload, f"the {options.executor} executor holds whole models")
    _check_weights(options)
    _check_device(options.device)


def _check_weights(options: RunnerOptions) -> None:
    if options.executor == "device":
        if options.weights not in DEVICE_WEIGHTS:
            known = ", ".join(DEVICE_WEIGHTS)
            raise SettingError("weights", options.weights, f"the device executor holds {known}")
    elif options.weights == "fp8":
        raise SettingError("weights", options.weights, "needs the device executor")
    elif options.weights != "converted" and not holds_blocks(options.dtype, options.executor):
        raise SettingError("weights", options.weights, "needs the native executor in bfloat16")


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise SettingError("device", name, str(error).splitlines()[0]) from error


def _open_weights(directory: Path, options: RunnerOptions) -> Weights:
    if options.weights != "native":
        # each tensor is read where it will be used: on a GPU none lies in memory as a whole before
        return SafetensorsWeights(directory, options.device if options.executor == "device" else "cpu")
    path = directory / KEPT_GGUF
    if not path.is_file():
        raise SettingError(
            "weights", options.weights, f"{directory} has no {KEPT_GGUF}: pull the model again"
        )
    return GgufWeights(path)


class ModelRunner:
    """Runs passes. Not thread-safe: one engine thread owns it."""

    def __init__(
        self, config: ModelConfig, executor: Executor, num_blocks: int, window: KVWindow | None = None
    ) -> None:
        self.config, self._executor = config, executor
        self.features = FeatureStore(executor, num_blocks * BLOCK_TOKENS)
        """Hidden states of what the cache holds, once `keep_features` was called."""
        self.cache = PagedKVCache(num_blocks, self.features, window)
        self._told_of_reference = False

    @classmethod
    def load(cls, directory: Path, options: RunnerOptions, ranks: Ranks | None = None) -> "ModelRunner":
        """Loads a Hugging Face model directory; of a model that ranks share, this rank's part.

        Raises:
            SettingError: if an option is bad or the directory holds no model.
            IncompatibleError: if the executor asked for cannot run the model.
        """
        check_options(options)
        hf, generation = load_transformers_config(directory)
        if options.executor != "generic":
            try:
                config = from_transformers(hf, generation)
            except IncompatibleError as error:
                if options.executor != "auto" or ranks is not None:
                    raise
                log.warning("%s; using the generic executor", error)
            else:
                return cls.build(config, _open_weights(directory, options), options, ranks)
        if ranks is not None:
            raise SettingError("executor", options.executor, "ranks can only share our own decoder's models")
        return cls._load_generic(directory, hf, generation, options)

    @classmethod
    def _load_generic(
        cls, directory: Path, hf: Any, generation: Any | None, options: RunnerOptions
    ) -> "ModelRunner":
        from transformers import AutoModelForCausalLM

        if options.kv_window:
            raise SettingError("kv_window", options.kv_window, "the generic executor has no windowed cache")
        if options.layers is not None:
            raise SettingError("layers", options.layers, "the generic executor runs whole models")
        if options.offload != "none":
            raise SettingError("offload", options.offload, "the generic executor holds whole models")
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[options.dtype])
        return cls.wrap(model, hf, options, generation)

    @classmethod
    def wrap(
        cls, model: Any, hf: Any, options: RunnerOptions, generation: Any | None = None
    ) -> "ModelRunner":
        """Runs a `transformers` model as it is."""
        from specinfer.model.executors.generic import GenericExecutor, generic_config

        num_blocks = blocks_for(options.kv_tokens)
        executor = GenericExecutor(model, num_blocks, options.device, options.attention)
        return cls(generic_config(hf, generation), executor, num_blocks)

    @classmethod
    def build(
        cls, config: ModelConfig, weights: Weights, options: RunnerOptions, ranks: Ranks | None = None
    ) -> "ModelRunner":
        """Puts a model together from its configuration and weights; each of `ranks` does at the same time.

        Raises:
            SettingError: if an option names something that does not exist.
        """
        check_options(options)
        dtype = DTYPES[options.dtype]
        if options.layers is not None:
            config = config.first_layers(options.layers)
        if options.kv_window and not config.rotary_dim:
            raise SettingError("kv_window", options.kv_window, "needs a model with rotary positions")
        if ranks is not None and options.weights != "converted":
            raise SettingError("weights", options.weights, "ranks share a model as dtype says: converted")
        if ranks is not None and options.offload != "none":
            raise SettingError(
                "offload", options.offload, "ranks that share a model keep it on their devices"
            )
        weights = in_llama_names(config, weights)
        if options.weights in BLOCK_TYPES and options.executor != "device":
            weights = QuantisedWeights(weights, options.weights)
        num_blocks = blocks_for(options.kv_tokens)
        executor: Executor
        if ranks is not None:
            executor = parallel_executor(
                ranks, config, weights, dtype, num_blocks, options.executor, options.attention
            )
        else:
            store = open_store(options.offload, options.device, options.offload_directory)
            executor = make_executor(
                *(options.executor, config, weights, dtype, num_blocks, options.device, options.attention),
                store=store,
                held=options.weights,
            )
        if options.weights != "converted" and isinstance(executor, TorchExecutor):
            log.warning("weights = %s: the torch executor holds them in %s", options.weights, options.dtype)
        window = None
        if options.kv_window:
            window = KVWindow(options.kv_window, options.kv_sinks, config.max_positions)
        return cls(config, executor, num_blocks, window)

    @property
    def parallel(self) -> ParallelExecutor | None:
        """The ranks that share the model, if several do."""
        return self._executor if isinstance(self._executor, ParallelExecutor) else None

    @property
    def memory(self) -> list[RankMemory]:
        """What each rank holds; nothing where the executor does not tell."""
        executor = self._executor
        if isinstance(executor, TorchExecutor):
            return [RankMemory(executor.weight_bytes, executor.cache_bytes)]
        return executor.memory if isinstance(executor, ParallelExecutor) else []

    @property
    def executor_name(self) -> str:
        """What runs its passes: "native", "torch" or "generic"."""
        return self._executor.name

    @property
    def chooser(self) -> Chooser | None:
        """What chooses tokens where logits lie, if they do not lie on the host."""
        return self._executor if isinstance(self._executor, Chooser) else None

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
        return self._run(segments, self.features.layers)[0]

    @torch.inference_mode()
    def forward_with_features(
        self, segments: Sequence[Segment], layers: Sequence[int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The same, and per segment the hidden states [tokens, len(layers), hidden] of delta and nodes.

        In bfloat16. A layer l stands for the hidden states after l layers; the layers ascend.

        Raises:
            SettingError: if the model has no such layer, or its executor tells no hidden states.
        """
        self._check_layers(layers)
        return self._run(segments, tuple(layers))

    def keep_features(self, layers: Sequence[int]) -> None:
        """From now on passes keep the hidden states after so many layers in `features`; none: no more.

        Raises:
            SettingError: as `forward_with_features`.
        """
        self._check_layers(layers)
        self.features.keep(layers, self.config.hidden_size)

    def _check_layers(self, layers: Sequence[int]) -> None:
        told = self.feature_layers
        if layers and not told:
            raise SettingError(
                "features", list(layers), f"the {self.executor_name} executor tells no hidden states"
            )
        if list(layers) != sorted({layer for layer in layers if 0 <= layer <= told}):
            raise SettingError("features", list(layers), f"must ascend from 0 to the model's {told} layers")

    @property
    def feature_layers(self) -> int:
        """Layers after which hidden states can be asked for; 0: none."""
        return 0 if self.executor_name == "generic" else self.config.layers

    def _run(
        self, segments: Sequence[Segment], layers: tuple[int, ...]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        self._reserve(segments)
        batch = flatten(segments)
        if layers:
            shape = (len(batch.token_ids), len(layers), self.config.hidden_size)
            batch = replace(batch, features=Features(layers, np.empty(shape, np.float32)))
        logits = self._executor.run(batch)
        for segment in segments:
            if segment.delta:
                self.cache.append(segment.sequence, segment.delta)
            self.cache.add_nodes(segment.sequence, segment.nodes, segment.parents)
        features = []
        if batch.features is None:
            self.features.forget(batch.write_slots)
        else:
            states = torch.from_numpy(batch.features.states).to(torch.bfloat16)
            features = [states[part.start : part.stop] for part in batch.rows]
            if layers == self.features.layers:
                self.features.write(batch.write_slots, states.view(torch.int16).numpy())
        return [logits[start:stop] for start, stop in batch.logit_spans], features

    @torch.inference_mode()
    def grow(
        self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Reads every task's new context and grows its tree; one per task, in order.

        Of the trees nothing stays in the cache. Room for `shape.scored_nodes` must be reserved.
        """
        if isinstance(self._executor, Grower) and self._grows(self._executor, tasks, shape):
            trees = self._executor.grow(tasks, shape, token_ids)
            for task in tasks:
                self.cache.append(task.sequence, task.delta)
                self.cache.trim(task.sequence)
            return trees
        try:
            return ReferenceGrowth(self.forward, shape, token_ids).grow(tasks)
        finally:
            for task in tasks:
                self.cache.commit(task.sequence, ())

    def _grows(self, grower: Grower, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        """Whether an executor grows these trees itself; says so once if not."""
        if grower.can_grow(tasks, shape):
            return True
        if not self._told_of_reference:
            self._told_of_reference = True
            log.warning(
                "the %s executor does not grow such trees (proposal %s, expansion %s, beam %d): "
                "they are grown level by level, which is slower",
                *(self.executor_name, shape.kind.name.lower(), shape.expansion, shape.beam),
            )
        return False

    def _reserve(self, segments: Sequence[Segment]) -> None:
        try:
            for segment in segments:
                self.cache.reserve(segment.sequence, len(segment.delta) + len(segment.nodes))
        except ExhaustedError:
            for segment in segments:
                self.cache.trim(segment.sequence)
            raise
