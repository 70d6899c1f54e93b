"""Compares a model's logits with those of `transformers`; refuses differing models.

Only some layers and vocabulary rows are compared: a probe.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from specinfer.errors import IncompatibleError, SettingError, SpecInferError
from specinfer.model.cache.sequence import blocks_for
from specinfer.model.loading import LoadedModel, load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.records import WHAT, record_path
from specinfer.model.probe.reference import (
    ReferenceModel,
    few_layers,
    first_layers_of,
    layer_lists,
    quiet,
)
from specinfer.model.probe.ways import WayDistance, compare_ways, prompt_tokens
from specinfer.model.runner import ModelRunner
from specinfer.model.torch.generic import GenericExecutor, generic_config
from specinfer.model.weights.account import check_tensors, model_of, with_layers
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers, load_transformers_config
from specinfer.model.weights.families import in_llama_names
from specinfer.model.weights.files import TensorSlice
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.source import KEPT_GGUF, kept_gguf
from specinfer.system.derived import store_value
from specinfer.system.progress import progress

log = logging.getLogger(__name__)
_ROUNDING = {torch.float32: 1e-3}
"""Maximum difference of logits from rounding, in standard deviations of the logits."""
_ROUNDING_OF_HALVES = 0.2
"""Maximum difference for 16-bit types, in standard deviations of the logits."""
_CACHE_TOKENS = 512
_FEWEST_TOKENS = 6
"""Minimum prompt length in tokens; models that cannot read it are refused."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_ROWS = 2048
"""Maximum vocabulary rows to compare, for GGUF files."""
_FEWEST_LAYERS = 2
_WINDOW = 16
"""Maximum sliding window in a probe, in tokens; shorter than the prompt."""


class Probe(NamedTuple):
    executor: str
    differences: list[WayDistance]


def probe_generic(model: Any) -> Probe:
    """Compare some layers of a `transformers` model, run by the generic executor."""
    family = model.config.model_type
    with quiet():
        small = few_layers(model)
        executor = GenericExecutor(small, blocks_for(_CACHE_TOKENS))
        runner = ModelRunner(generic_config(small.config), executor, blocks_for(_CACHE_TOKENS))
        differences = _compare(runner, small, small.config)
        silent = _silent_layers(small, executor.attending)
    _judge(family, differences, _ROUNDING.get(small.dtype, _ROUNDING_OF_HALVES), silent)
    return Probe("generic", differences)


def probe_gguf(path: Path, hf: Any, generation: Any | None, executor: str) -> Probe:
    """Compare some layers of a GGUF file with `transformers`, in float32."""
    small, tensors = read_sample(path, hf)
    with quiet():
        config = from_transformers(small, generation)
        options = RunnerOptions(dtype="float32", kv_tokens=_CACHE_TOKENS, executor=executor)
        runner = ModelRunner.build(config, tensors, options)
        differences = _compare(runner, model_of(small, tensors, torch.float32), small)
    _judge(config.family, differences, _ROUNDING[torch.float32], [])
    return Probe(executor, differences)


def probe_loaded(directory: Path, loaded: LoadedModel) -> Probe:
    """Compare some layers of a loaded checkpoint with `transformers`, in float32."""
    if isinstance(loaded.executor, GenericExecutor):
        return probe_generic(loaded.executor.model)
    hf, generation = load_transformers_config(directory)
    shorten_window(hf)
    used = "native" if loaded.executor.name == "native" else "torch"
    gguf = kept_gguf(directory)
    if gguf is not None:
        return probe_gguf(gguf, hf, generation, used)
    config = from_transformers(hf, generation)
    count = fewest_layers(config)
    small = RunnerOptions(dtype="float32", kv_tokens=_CACHE_TOKENS, executor=used, layers=count)
    with quiet():
        runner = ModelRunner.build(config, open_checkpoint(directory), small)
        differences = _compare(runner, first_layers_of(directory, hf, count), hf)
    _judge(config.family, differences, _ROUNDING[torch.float32], [])
    return Probe(used, differences)


def check_gguf_model(directory: Path, executor: str) -> None:
    """Check a GGUF file's tensors, probe the model, and cache the result."""
    gguf = kept_gguf(directory)
    if gguf is None:
        raise SettingError("model", str(directory), f"the directory has no {KEPT_GGUF}")
    hf, generation = load_transformers_config(directory)
    config, weights = from_transformers(hf, generation), GgufWeights(gguf, blocks=False)
    check_tensors(hf, config, in_llama_names(config, weights))
    _keep(
        directory, executor, probe_gguf(gguf, hf, generation, "native" if executor == "native" else "torch")
    )


def check_directory(directory: Path) -> Probe:
    """Load a model and probe it; cached results are not used."""
    hf, generation = load_transformers_config(directory)
    try:
        config = from_transformers(hf, generation)
    except IncompatibleError:  # the generic executor runs all layers
        options = RunnerOptions(kv_tokens=_CACHE_TOKENS)
    else:
        layers = fewest_layers(config)
        options = RunnerOptions(dtype="float32", kv_tokens=_CACHE_TOKENS, layers=layers)
    with quiet():
        loaded = load_model(directory, options)
    return require_right(directory, loaded)


def require_right(directory: Path, loaded: LoadedModel) -> Probe:
    """Probe a loaded checkpoint, and cache the result."""
    with progress(WHAT):
        probe = probe_loaded(directory, loaded)
    _keep(directory, loaded.executor.name, probe)
    return probe


def _keep(directory: Path, executor: str, probe: Probe) -> None:
    distances = {difference.way: difference.distance for difference in probe.differences}
    content: dict[str, object] = {"model": str(directory), "executor": probe.executor, "distances": distances}
    store_value(record_path(directory, executor), content)
    farthest = max(distances.values())
    difference = "%s: logits of the %s executor agree with transformers (maximum difference %.1e)"
    log.info(difference, directory, probe.executor, farthest)


def _compare(runner: ModelRunner, model: Any, hf: Any) -> list[WayDistance]:
    config = runner.config
    prompt = prompt_tokens(config.vocab_size, config.max_positions, _special_ids(hf))
    if len(prompt) < _FEWEST_TOKENS:
        raise IncompatibleError(
            f"vocab_size = {config.vocab_size}, {config.max_positions} positions: too few to check the model"
        )
    try:
        return compare_ways(runner, ReferenceModel(model), prompt, _far_position(hf, config, len(prompt)))
    except SpecInferError:
        raise
    except Exception as error:  # the model's own code may raise anything
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise IncompatibleError(
            f"model_type = {hf.model_type!r}: its forward fails in our passes: {what}"
        ) from error


def _far_position(hf: Any, config: ModelConfig, length: int) -> int:
    """Return the last possible first position of a prompt of this length.

    With chunked attention, it is a multiple of the chunk size.
    """
    unit = getattr(hf.get_text_config(), "attention_chunk_size", None) or 1
    return (config.max_positions - length) // unit * unit


def _special_ids(hf: Any) -> set[int]:
    """Return the ids of special tokens, for example of images."""
    values = {**hf.to_dict(), **hf.get_text_config().to_dict()}
    return {
        value
        for name, value in values.items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    }


def _silent_layers(model: Any, attending: Sequence[torch.nn.Module]) -> list[str]:
    """Describe layers that called no attention: number, and names of their parts."""
    silent = []
    for layers in layer_lists(model):
        for number, layer in enumerate(layers):
            if not any(module is one for module in layer.modules() for one in attending):
                parts = {
                    type(part).__name__ for part in layer.children() if "Norm" not in type(part).__name__
                }
                silent.append(f"{number} ({', '.join(sorted(parts))})")
    return silent


def _judge(family: str, differences: Sequence[WayDistance], allowed: float, silent: Sequence[str]) -> None:
    """Refuse a model whose logits differ by more than `allowed`."""
    wrong = [difference for difference in differences if not difference.distance <= allowed]
    if not wrong:
        return
    ways = ", ".join(f"{difference.way} {difference.distance:.2g}" for difference in wrong)
    message = (
        f"model_type = {family!r}: logits differ from those of transformers ({ways} standard deviations)"
    )
    if silent:
        message += f"; layers without attention may have state outside the KV cache: {'; '.join(silent[:3])}"
    raise IncompatibleError(message)


class Sample(NamedTuple):
    """A model's first layers, with a part of the vocabulary."""

    hf: Any
    tensors: dict[str, torch.Tensor]


def read_sample(path: Path, hf: Any) -> Sample:
    """Read the first layers and vocabulary rows of a GGUF file.

    The layers include every kind of layer. `hf` is the configuration of the whole model.
    """
    count = fewest_layers(from_transformers(hf))
    small = with_layers(hf, count)
    shorten_window(small)
    small.vocab_size = min(_ROWS, hf.vocab_size)
    small.pad_token_id = None  # it may be outside the reduced vocabulary
    weights, rows = GgufWeights(path, blocks=False), TensorSlice(0, 0, small.vocab_size)
    names = [name for name in weights if (match := _LAYER.search(name)) is None or int(match[1]) < count]
    tensors = {
        name: weights.part(name, rows) if weights.shape(name)[0] == hf.vocab_size else weights[name]
        for name in names
    }
    return Sample(small, tensors)


def fewest_layers(config: ModelConfig) -> int:
    """Return the minimum number of first layers that include every kind."""
    return min(max(_FEWEST_LAYERS, config.varied_layers), config.layers)


def shorten_window(hf: Any) -> None:
    """Reduce a sliding window to fewer tokens than the probe's prompt."""
    if getattr(hf, "sliding_window", None):
        hf.sliding_window = min(hf.sliding_window, _WINDOW)
