"""Layers of a published draft, as its `transformer_layer_config` describes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.sizes import check_sizes
from specinfer.model.weights.config import ModelConfig, from_transformers

_KINDS = ("llama", "qwen3")
_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
_ELSEWHERE = ("rope_theta", "rope_scaling", "torch_dtype", "_name_or_path")
"""Fields under their older names, and one without meaning."""
_ROPE = frozenset(
    {
        "rope_type",
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
    }
    | {"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "truncate"}
    | {"mscale", "mscale_all_dim", "short_factor", "long_factor"}
)
"""Parts of `rope_parameters` that `transformers` reads; frequencies by kind of layer are none of them."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_FIELD = "transformer_layer_config"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DraftLayers:
    """The layers of a draft."""

    config: ModelConfig
    """Their shape; the vocabulary is the target's."""
    windows: tuple[int | None, ...]
    """By layer, the number of positions that it looks back; None: all."""
    biased: bool
    """True if the projections of attention have biases."""


def read_layers(fields: Any) -> DraftLayers:
    """Read a `transformer_layer_config`.

    Raises:
        IncompatibleError: naming the field that is not understood.
    """
    from transformers import AutoConfig

    if not isinstance(fields, dict):
        raise IncompatibleError(f"{_FIELD} = {fields!r}: must be an object")
    kind = fields.get("model_type")
    if kind not in _KINDS:
        raise refused("model_type", kind, f"supported are {', '.join(_KINDS)}")
    known = {*AutoConfig.for_model(kind).to_dict(), *_WINDOWS, *_ELSEWHERE}
    for name in sorted(fields.keys() - known):
        raise refused(name, fields[name], "not understood")
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name) or {}
        if not isinstance(rope, dict) or rope.keys() - _ROPE:
            raise refused(name, rope, "not understood")
    check_sizes({_FIELD: fields}, least=1)
    plain = {name: value for name, value in fields.items() if name not in _WINDOWS}
    try:
        config = from_transformers(AutoConfig.for_model(**plain))
    except IncompatibleError as error:
        raise IncompatibleError(f"{_FIELD}: {error}") from error
    except Exception as error:  # values that do not go together: of any type
        raise IncompatibleError(f"{_FIELD}: {' '.join(str(error).split())}") from error
    return DraftLayers(config, _windows(fields, config.layers), bool(fields.get("attention_bias")))


def refused(name: str, value: Any, why: str) -> IncompatibleError:
    """Return the error that refuses a field of the layers."""
    return IncompatibleError(f"{_FIELD}.{name} = {value!r}: {why}")


def _windows(fields: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    kinds, window = fields.get("layer_types"), fields.get("sliding_window")
    if kinds is None and fields.get("use_sliding_window"):
        raise refused("layer_types", kinds, "use_sliding_window = True does not say which layers have it")
    kinds = [_FULL] * layers if kinds is None else kinds
    known = isinstance(kinds, list) and all(kind in (_FULL, _SLIDING) for kind in kinds)
    if not known or len(kinds) != layers:
        raise refused("layer_types", kinds, f"must be {_FULL} or {_SLIDING} for each of {layers} layers")
    if _SLIDING in kinds and (not isinstance(window, int) or window < 1):
        raise refused("sliding_window", window, "must be a positive whole number")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def layer_shapes(prefix: str, layers: DraftLayers, normed_heads: bool, width: int = 1) -> Shapes:
    """Return the tensors of one layer under a prefix, with their shapes.

    Args:
        normed_heads: whether queries and keys are normed.
        width: hidden states that lie side by side in the input of attention.
    """
    c, read = layers.config, width * layers.config.hidden_size
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    rows = {"q_proj": (query, read), "k_proj": (key, read), "v_proj": (key, read)}
    rows["o_proj"] = (c.hidden_size, query)
    found: Shapes = {
        f"{prefix}{norm}.weight": (c.hidden_size,) for norm in ("input_layernorm", "post_attention_layernorm")
    }
    for name, shape in rows.items():
        found[f"{prefix}self_attn.{name}.weight"] = shape
        if layers.biased:
            found[f"{prefix}self_attn.{name}.bias"] = shape[:1]
    if normed_heads:
        found |= {f"{prefix}self_attn.{name}.weight": (c.head_dim,) for name in ("q_norm", "k_norm")}
    for name in ("gate_proj", "up_proj"):
        found[f"{prefix}mlp.{name}.weight"] = (c.intermediate_size, c.hidden_size)
    found[f"{prefix}mlp.down_proj.weight"] = (c.hidden_size, c.intermediate_size)
    return found
