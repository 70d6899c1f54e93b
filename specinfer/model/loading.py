"""Loads a model from a directory, or from configuration and weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specinfer.errors import IncompatibleError, SettingError, naming
from specinfer.model.backends import Backend, Work, choose_backend, planned_backend, refusal
from specinfer.model.cache.capacity import AUTO_TOKENS, fitting_tokens, token_bytes, weight_bytes
from specinfer.model.cache.sequence import SINKS, KVWindow, blocks_for
from specinfer.model.executor import Executor, HeadSetter
from specinfer.model.formats.base import LARGE_BITS, SMALL_BLOCKS
from specinfer.model.formats.registry import find_format
from specinfer.model.formats.weights_in_format import (
    NOT_COUNTED,
    WeightFormats,
    WeightsInFormat,
    formats_of_parameters,
)
from specinfer.model.lazy_torch import torch
from specinfer.model.native.requantise import requantised
from specinfer.model.offload.stores import open_store
from specinfer.model.options import RunnerOptions, check_kv_type, check_numbers, torch_dtype
from specinfer.model.weights.account import HEAD, check_rope, check_tensors, load_whole
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config, load_transformers_config
from specinfer.model.weights.draft_checkpoint import Overlay
from specinfer.model.weights.families import EMBEDDING, in_llama_names
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.interfaces import Blocks, BlockWeights, Weights
from specinfer.model.weights.packed import open_checkpoint, quant_method
from specinfer.model.weights.source import kept_gguf
from specinfer.model.weights.trimmed import TrimmedHead, trimmed
from specinfer.options.model_options import AUTO
from specinfer.system.json_files import read_json
from specinfer.system.machine import free_memory, is_cuda

if TYPE_CHECKING:
    from specinfer.model.parallel.ranks import Ranks

log = logging.getLogger(__name__)


class LoadedModel(NamedTuple):
    config: ModelConfig
    executor: Executor
    num_blocks: int
    window: KVWindow | None = None
    """Window of the cache; None: the cache keeps all context tokens."""
    weights: WeightFormats = NOT_COUNTED
    head: TrimmedHead | None = None
    """Output head whose rows can be replaced; None: the rows are fixed."""


def load_model(
    directory: Path, options: RunnerOptions, ranks: Ranks | None = None, accounted: bool = False
) -> LoadedModel:
    """Load a model from a directory; with `ranks`, only this rank's part.

    Args:
        accounted: True if the tensors' names and shapes were already compared with the configuration.
    """
    with naming(directory):
        return _load_model(directory, options, ranks, accounted)


def _load_model(directory: Path, options: RunnerOptions, ranks: Ranks | None, accounted: bool) -> LoadedModel:
    if adapter := next(directory.glob("adapter_*"), None):
        raise IncompatibleError(f"{adapter}: adapters are not applied; merge this one into the weights")
    if options.executor != "generic":
        try:
            config = _own_config(directory, options)
        except IncompatibleError as error:
            if options.executor != "auto" or ranks is not None:
                raise
            log.warning("%s; using the generic executor", error)
        else:
            device = options.device if ranks is None else ranks.device
            weights = _open_weights(directory, config, options, device)
            if ranks is None or not is_cuda(options.device):
                options = _with_tokens(options, config, directory)
            if not accounted:
                hf, _ = load_transformers_config(directory)
                check_tensors(hf, config, in_llama_names(config, weights))
            return build_model(config, weights, options, ranks, accounted)
    if ranks is not None:
        raise SettingError("executor", options.executor, "must be auto, torch or gpu if ranks share a model")
    return _load_generic(directory, *load_transformers_config(directory), options)


def _own_config(directory: Path, options: RunnerOptions) -> ModelConfig:
    config = load_config(directory)
    stated = read_json(directory / "config.json").get("max_position_embeddings")
    if isinstance(stated, int) and config.max_positions < stated:
        log.warning(
            "model_type = %r: served up to %d positions (rope_type = 'longrope')",
            *(config.family, config.max_positions),
        )
    if options.executor == "auto" and (reason := refusal(config, options)):
        raise IncompatibleError(reason)
    return config


def wrap_model(model: Any, hf: Any, options: RunnerOptions, generation: Any | None = None) -> LoadedModel:
    """Load a `transformers` model object with the generic executor."""
    from specinfer.model.torch.generic import GenericExecutor, generic_config

    check_kv_type(options, "generic")
    num_blocks = blocks_for(options.kv_tokens)
    executor = GenericExecutor(model, num_blocks, options.device)
    if executor.limit:
        log.warning("model_type = %r: %s", hf.model_type, executor.limit)
    formats = formats_of_parameters(model.parameters())
    return LoadedModel(generic_config(hf, generation), executor, num_blocks, weights=formats)


def build_model(
    config: ModelConfig,
    weights: Weights,
    options: RunnerOptions,
    ranks: Ranks | None = None,
    accounted: bool = False,
) -> LoadedModel:
    """Build a model from its configuration and weights.

    If `ranks` share the model, all of them must call this function at the same time. `accounted` is as in `load_model`.
    """
    if options.layers is not None:
        config = config.first_layers(options.layers)
    if options.token_ids:
        config = replace(config, vocab_size=len(options.token_ids), tied_embeddings=False)
    config = _known_to_parts(config, options, ranks)
    window = _window(config, options)
    if isinstance(weights, GgufWeights) and not accounted:
        check_rope(config, weights)
    if ranks is not None:
        _check_shared(options)
    num_blocks = blocks_for(options.kv_tokens)
    try:
        executor, in_format = _executor(config, weights, options, num_blocks, ranks)
    except torch.OutOfMemoryError as error:
        reason = f"{str(error).splitlines()[0]} (--kv-tokens = {options.kv_tokens})"
        raise SettingError("device", options.device, reason) from error
    head = _replaceable_head(weights, in_format, executor, options)
    return LoadedModel(config, executor, num_blocks, window, in_format.formats(), head)


def _replaceable_head(
    weights: Weights, in_format: WeightsInFormat, executor: Executor, options: RunnerOptions
) -> TrimmedHead | None:
    """Return the trimmed head if its rows are replaceable, else None.

    Its rows must be blocks of the GGUF file, as stored or in Q4_0, so that other rows of the file can replace them.
    """
    name = HEAD if HEAD in weights else EMBEDDING
    if not options.token_ids or not isinstance(weights, GgufWeights) or not isinstance(executor, HeadSetter):
        return None
    if not in_format.gives_blocks or not weights.in_blocks(name):
        return None
    if in_format.format.name not in (AUTO, SMALL_BLOCKS):
        return None
    columns = weights.shape(name)[1]

    def to_format(blocks: Blocks) -> Blocks:
        same = in_format.format.name == AUTO or blocks[0] == "Q4_0"
        return blocks if same else requantised(blocks, columns) or blocks

    return TrimmedHead(weights, name, options.token_ids, executor.set_head, to_format)


def _load_generic(directory: Path, hf: Any, generation: Any | None, options: RunnerOptions) -> LoadedModel:
    if options.kv_window:
        raise SettingError("kv_window", options.kv_window, "must be 0 for the generic executor")
    if options.kv_tokens == AUTO_TOKENS:
        raise SettingError(
            "kv_tokens", "auto", "the generic executor needs a number: it does not know a token's bytes"
        )
    if options.layers is not None:
        raise SettingError("layers", options.layers, "must be unset for the generic executor")
    if options.offload != "none":
        raise SettingError("offload", options.offload, "must be none for the generic executor")
    if any(directory.glob("*.safetensors")):
        SafetensorsWeights(directory)  # check that the index matches the files
    if method := quant_method(hf):
        raise IncompatibleError(
            f"quant_method = {method!r}: not supported for model_type = {hf.model_type!r}"
        )
    return wrap_model(
        load_whole(directory, hf.model_type, torch_dtype(options.dtype)), hf, options, generation
    )


def _with_tokens(options: RunnerOptions, config: ModelConfig, directory: Path) -> RunnerOptions:
    if options.kv_tokens != AUTO_TOKENS:
        return options
    gguf = kept_gguf(directory)
    files = [gguf] if gguf is not None else directory.glob("*.safetensors")
    weights = sum(file.stat().st_size for file in files)
    if is_cuda(options.device):
        weights = weight_bytes(config, options.dtype, options.weights)
    bytes_of_token = token_bytes(config, options.dtype, options.kv_type)
    tokens = fitting_tokens(free_memory(options.device), weights, bytes_of_token, config.max_positions)
    log.info("kv_tokens = auto: the cache has %d tokens of %.1f kB", tokens, bytes_of_token / 1e3)
    return replace(options, kv_tokens=tokens)


def _open_weights(directory: Path, config: ModelConfig, options: RunnerOptions, device: str) -> Weights:
    path = kept_gguf(directory)
    if path is not None:
        return GgufWeights(path)
    backend, _ = planned_backend(config, options)
    # read each tensor to the device that uses it: a GPU's model is never whole in host memory
    on_device = backend is not None and backend.name == "gpu"
    return open_checkpoint(directory, device if on_device else "cpu")


def _known_to_parts(config: ModelConfig, options: RunnerOptions, ranks: Ranks | None) -> ModelConfig:
    """Return the configuration as all chosen parts support it.

    Parts that only know layers like Llama's limit the context to a sliding window (`ModelConfig.like_llama`).
    """
    if ranks is not None:
        return ranks.place.layout.known_part(config)
    if options.executor == "gpu":
        if config.windows:
            limit = config.up_to_window().max_positions
            log.warning(
                "model_type = %r: served up to %d positions, its sliding window", config.family, limit
            )
        return config.up_to_window()
    return config.like_llama(f"kv_window = {options.kv_window}") if options.kv_window else config


def _window(config: ModelConfig, options: RunnerOptions) -> KVWindow | None:
    if not options.kv_window:
        return None
    if not config.rotary_dim:
        raise SettingError("kv_window", options.kv_window, "must be 0 for a model without rotary positions")
    return KVWindow(options.kv_window, SINKS, config.max_positions)


def _check_shared(options: RunnerOptions) -> None:
    check_numbers(options, "ranks share a model")
    check_kv_type(options, "torch")
    if options.kv_tokens == AUTO_TOKENS:
        raise SettingError("kv_tokens", "auto", "needs a number for ranks that share a model on GPUs")
    if options.offload != "none":
        raise SettingError("offload", options.offload, "must be none for ranks that share a model")


def _executor(
    config: ModelConfig, weights: Weights, options: RunnerOptions, num_blocks: int, ranks: Ranks | None
) -> tuple[Executor, WeightsInFormat]:
    dtype = options.dtype
    if ranks is not None:
        in_format = WeightsInFormat(
            in_llama_names(config, weights), find_format(options.weights), "torch", dtype
        )
        from specinfer.model.parallel.executor import parallel_executor

        if options.executor == "gpu":
            choose_backend(config, options)
        whole = (torch_dtype(dtype), num_blocks, options.executor)
        return parallel_executor(ranks, config, in_format, *whole), in_format
    backend, in_format = backend_and_weights(config, weights, options)
    store = open_store(options.offload, options.device, options.offload_directory)
    work = Work(
        config, in_format, in_format.format, dtype, num_blocks, options.device, store, options.kv_type
    )
    return backend.make(work), in_format


def _preferred(weights: Weights, options: RunnerOptions) -> str:
    """Return the format of weights = "auto", if the backend supports it."""
    if isinstance(weights, GgufWeights):
        bits = 8 * weights.bytes_by_type().total() / weights.parameters
        return options.blocks_as if bits > LARGE_BITS else AUTO
    of_file = isinstance(weights, BlockWeights) and not isinstance(weights, Overlay)
    return AUTO if of_file else options.numbers_as


def backend_and_weights(
    config: ModelConfig, weights: Weights, options: RunnerOptions
) -> tuple[Backend, WeightsInFormat]:
    """Return the backend for a model, and the weights in its format."""
    dtype, chosen = options.dtype, find_format(options.weights)
    asked = chosen.name != AUTO
    backend = choose_backend(config, options)
    check_kv_type(options, backend.name)
    preferred = find_format(_preferred(weights, options))
    if not asked and not backend.runs(config, preferred, options):
        chosen = preferred
    named = in_llama_names(config, weights)
    if isinstance(weights, GgufWeights):
        weights.in_numpy = backend.name == "native" and weights.plain and named is weights
    if options.token_ids:
        named = trimmed(named, options.token_ids)
    return backend, WeightsInFormat(named, chosen, backend.name, dtype, asked)
