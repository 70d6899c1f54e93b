"""Compares the memory that a model needs with the free memory, before anything is loaded."""

import logging
from math import prod
from pathlib import Path
from typing import NamedTuple

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.cache.capacity import AUTO_TOKENS, fitting_tokens, token_bytes, weight_bytes
from specinfer.model.formats.base import LARGE_BITS, SMALL_BITS, SMALL_BLOCKS
from specinfer.model.options import RunnerOptions
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.files import shape_of
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.source import is_draft_checkpoint, kept_gguf, read_record
from specinfer.options.model_options import AUTO, CACHE_TOKENS
from specinfer.system.json_files import read_json
from specinfer.system.machine import free_memory, is_cuda

log = logging.getLogger(__name__)
PROGRAM_BYTES = 300_000_000
"""Memory of the process besides weights and caches."""
_MIN_TOKENS = 512
_GB = 1e9


class MemoryNeeds(NamedTuple):
    """Bytes that a target and its draft need."""

    weights: int
    draft: int
    token: int
    """Bytes of a cached context token, in the target's and the draft's cache."""

    def total(self, tokens: int) -> int:
        return self.weights + self.draft + PROGRAM_BYTES + tokens * self.token

    def explain(self, tokens: int, free: int) -> str:
        """Return, for example, "needs 2.9 GB (weights 1.1, draft 0.4, ...), 2.4 are free"."""
        parts = {"weights": self.weights, "draft": self.draft, "cache": tokens * self.token}
        listed = ", ".join(f"{name} {size / _GB:.1f}" for name, size in parts.items() if size)
        program = f"program {PROGRAM_BYTES / _GB:.1f}"
        return f"needs {self.total(tokens) / _GB:.1f} GB ({listed}, {program}), {free / _GB:.1f} are free"


def fitting_cache(
    model: Path,
    draft: Path | None,
    options: RunnerOptions,
    free: int | None = None,
    draft_weights: str = AUTO,
) -> int:
    """Return the capacity of the KV cache in tokens.

    It is the asked one; the default is reduced to what fits. On a GPU, auto counts the draft, which is loaded at the
    same time. On a CPU, only weights in the format of their file are compared.

    Args:
        model: directory of the target.
        draft: directory of its draft model, if any.
        options: options of the target.
        free: free bytes; None: those of the device now.
        draft_weights: `weights` of the draft.

    Raises:
        SettingError: if weights and cache do not fit.
    """
    asked, draft = options.kv_tokens, None if draft == model else draft  # a model's own MTP layer
    on_gpu = is_cuda(options.device)
    if options.offload != "none" or (not on_gpu and (options.device != "cpu" or options.weights != AUTO)):
        return asked
    if (needs := _needs(model, draft, options, draft_weights)) is None:
        return asked
    free = free_memory(options.device) if free is None else free
    if on_gpu and asked == AUTO_TOKENS and (alone := _needs(model, None, options)):
        of_draft = needs.total(CACHE_TOKENS) - alone.total(CACHE_TOKENS)
        longest = load_config(model).max_positions
        return fitting_tokens(free - of_draft, alone.weights, alone.token, longest)
    tokens = max(asked, _MIN_TOKENS if asked == AUTO_TOKENS else 0)
    if needs.total(tokens) <= free:
        return asked
    fitting = (free - needs.total(0)) // max(needs.token, 1) // 16 * 16
    if fitting < min(_MIN_TOKENS, tokens):
        instead = "--draft none, --kv-type q8_0 or a smaller model" if needs.draft else "a smaller model"
        raise SettingError(
            "model", model.name, f"{needs.explain(min(_MIN_TOKENS, tokens), free)}: choose {instead}"
        )
    if asked != CACHE_TOKENS:
        raise SettingError(
            "kv_tokens", asked, f"{needs.explain(asked, free)}: at most {fitting} tokens fit, as with auto"
        )
    log.warning("kv_tokens = %d: %s: the cache has %d tokens", asked, needs.explain(asked, free), fitting)
    return fitting


def _needs(
    model: Path, draft: Path | None, options: RunnerOptions, draft_weights: str = AUTO
) -> MemoryNeeds | None:
    """Return the needs; None for a model that only the generic executor runs."""
    try:
        target = load_config(model)
        token = token_bytes(target, options.dtype, options.kv_type)
        if draft is None:
            of_draft = 0
        elif is_draft_checkpoint(draft):
            token += token // max(target.kv_layers, 1) * _trained_layers(draft)
            of_draft = _trained_bytes(draft, target, options)
        else:
            token += token_bytes(load_config(draft), options.dtype, options.kv_type)
            of_draft = _weight_bytes(draft, options, draft_weights)
            blocks = options.dtype == "bfloat16" and not is_cuda(options.device)
            if blocks and draft_weights in (AUTO, SMALL_BLOCKS):
                of_draft = _small_bytes(draft) or of_draft
    except IncompatibleError:
        return None
    return MemoryNeeds(_weight_bytes(model, options, options.weights), of_draft, token)


def _trained_layers(directory: Path) -> int:
    """Return the number of a trained draft's layers, each with a cache."""
    layers = read_json(directory / "config.json").get("transformer_layer_config")
    count = layers.get("num_hidden_layers") if isinstance(layers, dict) else None
    return count if isinstance(count, int) else 1


def _trained_bytes(directory: Path, target: ModelConfig, options: RunnerOptions) -> int:
    """Return a trained draft's bytes; in torch, on a GPU, it copies the target's tables."""
    if not is_cuda(options.device):
        return _weight_bytes(directory, options, AUTO)
    stored = open_checkpoint(directory)
    numbers = sum(prod(shape_of(stored, name)) for name in stored)
    rows = target.vocab_size  # the embeddings, and the head's rows, one for each offset in d2t
    if "lm_head.weight" not in stored:
        rows += shape_of(stored, "d2t")[0] if "d2t" in stored else target.vocab_size
    return (numbers + rows * target.hidden_size) * (4 if options.dtype == "float32" else 2)


def _small_bytes(directory: Path) -> int:
    """Return the bytes of a requantised GGUF file, whose embeddings stay; 0: it is kept."""
    record = read_record(directory)
    count, size = int(record.get("parameters", 0)), int(record.get("bytes", 0))
    if kept_gguf(directory) is None or not count or (bits := 8 * size / count) <= LARGE_BITS:
        return 0
    config = load_config(directory)
    embeddings = config.vocab_size * config.hidden_size
    return int(count * SMALL_BITS + embeddings * (bits - SMALL_BITS)) // 8


def _weight_bytes(directory: Path, options: RunnerOptions, weights: str) -> int:
    if is_cuda(options.device):
        return weight_bytes(load_config(directory), options.dtype, weights)
    gguf = kept_gguf(directory)
    if gguf is not None:
        return gguf.stat().st_size
    size = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    fields = read_json(directory / "config.json")
    halved = options.dtype != "float32" and "float32" in (fields.get("dtype"), fields.get("torch_dtype"))
    return size // 2 if halved else size
