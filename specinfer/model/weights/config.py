"""Configuration of our own decoder, read from a `config.json` through `transformers`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.sizes import check_sizes
from specinfer.special_tokens import tokenizer_end

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt", "gpt_neox")
ACTIVATIONS = ("silu", "gelu", "relu")
"""Activations in the order of the kernels (native/csrc/model.h)."""
_SHAPE = {
    "layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
"""Fields in which a model made of parts of another's layers may differ, and their names in `config.json`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder that normalises before attention and before the MLP."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    activation: str
    tied_embeddings: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    inv_freq: tuple[float, ...] = ()
    """[R/2] rotary frequencies of the first R dimensions of a head; none if positions are learnt."""
    rotary_scale: float = 1.0
    """Factor on cos and sin (YaRN's attention scaling; 1 otherwise)."""
    layer_norm: bool = False
    """True for norms by mean and variance, with bias; else the root mean square."""
    gated: bool = True
    """True if the MLP is down(act(gate) * up), not down(act(up))."""
    parallel: bool = False
    """True if attention and MLP read the same hidden states instead of following each other."""

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are turned by its position; 0 if positions are learnt."""
        return 2 * len(self.inv_freq)

    def first_layers(self, count: int) -> "ModelConfig":
        """Return the same model cut after `count` layers."""
        if not 0 < count <= self.layers:
            raise SettingError("layers", count, f"the model has {self.layers} layers")
        return replace(self, layers=count)


def load_config(directory: Path) -> ModelConfig:
    """Read the model configuration of a directory.

    Raises:
        SettingError: if there is no `config.json`.
        IncompatibleError: if our decoder does not support the family or one of its options, or if a size is absurd.
    """
    return from_transformers(*load_transformers_config(directory))


def load_transformers_config(directory: Path) -> tuple[Any, Any | None]:
    """Return the `transformers` configuration of a directory, and its generation configuration if any.

    Raises:
        SettingError: if there is no `config.json`, or one that `transformers` cannot read.
        IncompatibleError: naming a size that no model can have.
    """
    from transformers import AutoConfig, GenerationConfig

    if not (directory / "config.json").is_file():
        raise SettingError("model", str(directory), "no config.json there")
    try:
        fields = json.loads((directory / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise SettingError("model", str(directory), f"config.json: not a valid JSON file: {error}") from error
    if isinstance(fields, dict):
        check_sizes(fields)
    try:
        hf = AutoConfig.from_pretrained(directory)
    except Exception as error:  # no `model_type` that it knows, values that do not go together: of any type
        what = " ".join(str(error).split())
        raise SettingError("model", str(directory), f"config.json: {what}") from error
    generation, path = None, directory / "generation_config.json"
    if path.is_file():
        try:
            generation = GenerationConfig.from_pretrained(directory)
        except (OSError, ValueError, TypeError) as error:  # no JSON; no object; values that it does not take
            raise SettingError("model", str(path), f"cannot be read: {str(error).splitlines()[0]}") from error
    end = tokenizer_end(directory)
    known = eos_token_ids(hf, generation)
    if end is not None and end not in known:
        generation = generation or GenerationConfig()
        generation.eos_token_id = [*known, end]
    return hf, generation


def from_transformers(hf: Any, generation: Any | None = None) -> ModelConfig:
    """Translate a `transformers` configuration.

    Raises:
        IncompatibleError: if our decoder does not support the family or one of its options.
    """
    if hf.model_type not in FAMILIES:
        raise IncompatibleError(f"model_type = {hf.model_type!r}: supported are {', '.join(FAMILIES)}")
    own = {"opt": _opt, "gpt_neox": _gpt_neox}.get(hf.model_type, _llama)(hf)
    if own["activation"] not in ACTIVATIONS:
        raise IncompatibleError(f"hidden_act = {own['activation']!r}: supported are {', '.join(ACTIVATIONS)}")
    heads = hf.num_attention_heads
    common = {
        "family": hf.model_type,
        "vocab_size": hf.vocab_size,
        "hidden_size": hf.hidden_size,
        "layers": hf.num_hidden_layers,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hf.hidden_size // heads,
        "max_positions": max_positions(hf),
        "tied_embeddings": bool(hf.tie_word_embeddings),
        "qk_norm": False,
        "eos_token_ids": eos_token_ids(hf, generation),
    }
    return ModelConfig(**(common | own))


def _llama(hf: Any) -> dict[str, Any]:
    """Return the configuration: grouped-query attention with rotary positions, RMS norm, gated MLP."""
    if getattr(hf, "mlp_bias", False):
        raise IncompatibleError("mlp_bias = True: not supported")
    inv_freq, scale = rotary(hf)
    return {
        "intermediate_size": hf.intermediate_size,
        "kv_heads": getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads,
        "head_dim": getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
        "norm_eps": hf.rms_norm_eps,
        "activation": hf.hidden_act,
        "qk_norm": hf.model_type == "qwen3",
        "inv_freq": inv_freq,
        "rotary_scale": scale,
    }


def _opt(hf: Any) -> dict[str, Any]:
    """Return the configuration: learnt positions, layer norm, plain MLP, biases."""
    if not hf.do_layer_norm_before or hf._remove_final_layer_norm or not hf.layer_norm_elementwise_affine:
        raise IncompatibleError("do_layer_norm_before = False, or norms without weights: not supported")
    if hf.word_embed_proj_dim != hf.hidden_size:
        raise IncompatibleError(f"word_embed_proj_dim = {hf.word_embed_proj_dim}: must be hidden_size")
    return {
        "intermediate_size": hf.ffn_dim,
        "norm_eps": 1e-5,
        "activation": hf.activation_function,
        "layer_norm": True,
        "gated": False,
    }


def _gpt_neox(hf: Any) -> dict[str, Any]:
    """Return the configuration: partly rotary positions, layer norm, parallel attention and MLP, biases."""
    inv_freq, scale = rotary(hf)
    return {
        "intermediate_size": hf.intermediate_size,
        "norm_eps": hf.layer_norm_eps,
        "activation": hf.hidden_act,
        "inv_freq": inv_freq,
        "rotary_scale": scale,
        "layer_norm": True,
        "gated": False,
        "parallel": hf.use_parallel_residual,
    }


def rotary(hf: Any) -> tuple[tuple[float, ...], float]:
    """Return frequencies as `transformers` computes them, for scalings that do not depend on the input.

    Its code of models is not loaded: it takes seconds, and 200 MB.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = getattr(hf, "rope_parameters", None) or getattr(hf, "rope_scaling", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3", "yarn") and not _same_for_all_lengths(parameters):
        raise IncompatibleError(f"rope_type = {kind!r}: its frequencies depend on the input length")
    if kind != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](hf, device="cpu")
        return tuple(inv_freq.to(torch.float32).tolist()), float(scale)
    part = parameters.get("partial_rotary_factor", 1.0) if hf.model_type == "gpt_neox" else 1.0
    head = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    size = int(head * part)
    inv_freq = 1.0 / parameters["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    return tuple(inv_freq.tolist()), 1.0


def _same_for_all_lengths(rope: Mapping[str, Any]) -> bool:
    """Return whether LongRoPE has the same factors for short texts and for long ones."""
    return rope.get("rope_type") == "longrope" and rope["short_factor"] == rope["long_factor"]


def max_positions(hf: Any) -> int:
    """Return the positions served exactly: a model with sliding windows is served up to its window."""
    uses_window = getattr(hf, "use_sliding_window", True)
    window = getattr(hf, "sliding_window", None) if uses_window else None
    return min(hf.max_position_embeddings, window) if window else int(hf.max_position_embeddings)


def generic_positions(text: Any) -> int:
    """Return the positions that a model of `transformers` is right for, whatever else is in the pass.

    LongRoPE turns all keys of a text otherwise as soon as it is longer than the original length, those in
    the cache too: such models are served up to there.

    Raises:
        IncompatibleError: if the configuration names none.
    """
    longest = getattr(text, "max_position_embeddings", None)
    if not longest:
        raise IncompatibleError(f"model_type = {text.model_type!r}: no max_position_embeddings")
    ropes = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for rope in [ropes, *(value for value in ropes.values() if isinstance(value, dict))]:
        if rope.get("rope_type") == "longrope" and not _same_for_all_lengths(rope):
            longest = min(longest, rope["original_max_position_embeddings"])
    return int(longest)


def eos_token_ids(hf: Any, generation: Any | None) -> tuple[int, ...]:
    """Return the ids that end a sequence: those of the generation configuration, else of the model's.

    Numbers that are no token of the model's are left out.

    Raises:
        IncompatibleError: if there are other things than numbers.
    """
    value = getattr(generation, "eos_token_id", None)
    if value is None:
        value = getattr(hf, "eos_token_id", None)
    ids = value if isinstance(value, (list, tuple)) else [value] if value is not None else []
    if not all(isinstance(token, int) for token in ids):
        raise IncompatibleError(f"eos_token_id = {value!r}: must be a token id, or a list of them")
    size = hf.get_text_config().vocab_size
    return tuple(token for token in dict.fromkeys(ids) if 0 <= token < size)


def shape_fields(config: ModelConfig, original: ModelConfig) -> dict[str, int]:
    """Return the fields of `config.json` in which a model made of parts of `original` differs from it."""
    fields = {
        name: getattr(config, own)
        for own, name in _SHAPE.items()
        if getattr(config, own) != getattr(original, own)
    }
    if config.heads != original.heads:  # `transformers` would divide the hidden size by the heads
        fields["head_dim"] = config.head_dim
    return fields


def with_shape(original: ModelConfig, fields: Mapping[str, Any]) -> ModelConfig:
    """Return the model that these fields of a `config.json` describe, if it is made of parts of `original`.

    The fields may be some of those in the file.
    """
    found = {own: fields[name] for own, name in _SHAPE.items() if fields.get(name) is not None}
    return replace(original, **found)
