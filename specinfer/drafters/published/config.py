"""Read the `config.json` of a published draft, and refuse unknown fields."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.sizes import check_sizes
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.draft_checkpoint import (
    OF_PUBLISHED,
    checked_config,
    target_config,
    verifier_fields,
)
from specinfer.system.json_files import read_json

_KINDS = ("llama", "qwen3")
_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")
_ELSEWHERE = ("rope_theta", "rope_scaling", "torch_dtype", "_name_or_path")
"""Fields that are read under their newer names, or ignored."""
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
"""Supported fields of `rope_parameters`, without frequencies per layer type."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_FIELD = "transformer_layer_config"

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DraftLayers:
    config: ModelConfig
    """Shape of the layers; the vocabulary is the target's."""
    windows: tuple[int | None, ...]
    """Number of earlier positions that each layer sees; None: all."""
    biased: bool
    """True if the attention's projections have biases."""

    def within(self, target: ModelConfig) -> "DraftLayers":
        """Limit the maximum number of positions to the target's."""
        longest = min(self.config.max_positions, target.max_positions)
        return replace(self, config=replace(self.config, max_positions=longest))


def read_layers(fields: Any, prefix: str = f"{_FIELD}.") -> DraftLayers:
    """Read a `transformer_layer_config`, or the same fields under another prefix."""
    from transformers import AutoConfig

    if not isinstance(fields, dict):
        raise IncompatibleError(f"{_FIELD} = {fields!r}: must be an object with the layers' configuration")
    kind = fields.get("model_type")
    if kind not in _KINDS:
        raise refused("model_type", kind, f"supported are {', '.join(_KINDS)}", prefix)
    known = {*AutoConfig.for_model(kind).to_dict(), *_WINDOWS, *_ELSEWHERE}
    for name in sorted(fields.keys() - known):
        raise refused(name, fields[name], "unknown field", prefix)
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name) or {}
        if not isinstance(rope, dict) or rope.keys() - _ROPE:
            raise refused(name, rope, f"must be an object with fields of {', '.join(sorted(_ROPE))}", prefix)
    check_sizes({prefix.removesuffix("."): fields} if prefix else fields, least=1)
    plain = {name: value for name, value in fields.items() if name not in _WINDOWS}
    label = prefix.replace(".", ": ")
    try:
        config = from_transformers(AutoConfig.for_model(**plain))
    except IncompatibleError as error:
        raise IncompatibleError(f"{label}{error}") from error
    except Exception as error:  # inconsistent values may raise anything
        raise IncompatibleError(f"{label}{' '.join(str(error).split())}") from error
    windows = _windows(fields, config.layers, prefix)
    return DraftLayers(config, windows, bool(fields.get("attention_bias")))


def refused(name: str, value: Any, reason: str, prefix: str = f"{_FIELD}.") -> IncompatibleError:
    """Return the error of a field of the layers."""
    return IncompatibleError(f"{prefix}{name} = {value!r}: {reason}")


def _windows(fields: Mapping[str, Any], layers: int, prefix: str) -> tuple[int | None, ...]:
    kinds, window = fields.get("layer_types"), fields.get("sliding_window")
    if kinds is None and fields.get("use_sliding_window"):
        reason = "use_sliding_window = True needs layer_types"
        raise refused("layer_types", kinds, reason, prefix)
    kinds = [_FULL] * layers if kinds is None else kinds
    known = isinstance(kinds, list) and all(kind in (_FULL, _SLIDING) for kind in kinds)
    if not known or len(kinds) != layers:
        reason = f"must be {_FULL} or {_SLIDING} for each of {layers} layers"
        raise refused("layer_types", kinds, reason, prefix)
    if _SLIDING in kinds and (not isinstance(window, int) or window < 1):
        raise refused("sliding_window", window, "must be a positive whole number", prefix)
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def layer_shapes(prefix: str, layers: DraftLayers, normed_heads: bool, width: int = 1) -> Shapes:
    """Return the tensors of one layer under a prefix, with their shapes.

    Args:
        normed_heads: whether queries and keys have norms.
        width: number of hidden states concatenated in the attention's input.
    """
    c, read = layers.config, width * layers.config.hidden_size
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    rows = {"q_proj": (query, read), "k_proj": (key, read), "v_proj": (key, read)}
    rows["o_proj"] = (c.hidden_size, query)
    shapes: Shapes = {
        f"{prefix}{norm}.weight": (c.hidden_size,) for norm in ("input_layernorm", "post_attention_layernorm")
    }
    for name, shape in rows.items():
        shapes[f"{prefix}self_attn.{name}.weight"] = shape
        if layers.biased:
            shapes[f"{prefix}self_attn.{name}.bias"] = shape[:1]
    if normed_heads:
        shapes |= {f"{prefix}self_attn.{name}.weight": (c.head_dim,) for name in ("q_norm", "k_norm")}
    for name in ("gate_proj", "up_proj"):
        shapes[f"{prefix}mlp.{name}.weight"] = (c.intermediate_size, c.hidden_size)
    shapes[f"{prefix}mlp.down_proj.weight"] = (c.hidden_size, c.intermediate_size)
    return shapes


_DESCRIBED = frozenset(
    {"architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "speculators_version"}
    | {"speculators_model_type", "speculators_config", "transformer_layer_config", "_name_or_path"}
    | {"has_no_defaults_at_init", "base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan"}
)
"""Fields of every algorithm that describe the file or are read elsewhere."""
EAGLE_LAYERS = "eagle_aux_hidden_state_layer_ids"
_UNTIED = {"tie_word_embeddings": False}
_PROPOSAL: Mapping[str, Any] = {"proposal_type": "greedy", "verifier_accept_k": 1, "accept_tolerance": 0.0}
"""Fields of a lossless proposal method; other values are refused."""


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    directory: Path
    target_directory: Path
    fields: Mapping[str, Any]
    """The algorithm's fields, with the library's defaults."""
    layers: DraftLayers
    target: ModelConfig
    tokens: int
    """Number of tokens that the draft was made to predict."""

    @property
    def draft_vocabulary(self) -> int:
        """Number of tokens that the draft can propose."""
        return self.count("draft_vocab_size") if "draft_vocab_size" in self.fields else self.target.vocab_size

    def count(self, name: str) -> int:
        """Return a field that must be a positive whole number."""
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise IncompatibleError(f"{name} = {value!r}: must be a positive whole number")
        return value

    def flag(self, name: str) -> bool:
        """Return a field that must be true or false."""
        value = self.fields[name]
        if not isinstance(value, bool):
            raise IncompatibleError(f"{name} = {value!r}: must be true or false")
        return value

    def token(self, name: str) -> int:
        """Return a field that must be a token id of the target."""
        value, size = self.fields[name], self.target.vocab_size
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
            raise IncompatibleError(f"{name} = {value!r}: must be a token id from 0 to {size - 1}")
        return value

    def read_layers(self, name: str) -> tuple[int, ...]:
        """Return a field that must be a list of distinct target layers."""
        if self.fields[name] is None and name == EAGLE_LAYERS:
            return usual_layers(self.target.layers)
        return distinct_layers(name, self.fields[name], self.target.layers)


def distinct_layers(name: str, value: Any, last: int) -> tuple[int, ...]:
    """Return a field that must be a list of distinct layers from 0 to `last`."""
    whole = isinstance(value, list) and all(type(n) is int and 0 <= n <= last for n in value)
    if not whole or not value or len(set(value)) < len(value):
        raise IncompatibleError(f"{name} = {value!r}: must be distinct layers from 0 to {last}")
    return tuple(value)


def usual_layers(layers: int) -> tuple[int, int, int]:
    """Return the default layers of hidden states for EAGLE-3 and similar drafts."""
    return 2, layers // 2, layers - 3


def read_published(
    directory: Path, target_directory: Path, algorithm: str, known: Mapping[str, Any]
) -> PublishedConfig:
    """Read the `config.json` of a checkpoint.

    Args:
        known: the algorithm's fields with the library's default values.
    """
    config = checked_config(directory, target_directory, algorithm)
    known = {**known, **_UNTIED}
    for name in sorted(config.keys() - known.keys() - _DESCRIBED):
        raise IncompatibleError(
            f"{name} = {config[name]!r}: unknown field of {algorithm}; known are {', '.join(sorted(known))}"
        )
    fields = {name: config.get(name, value) for name, value in known.items()}
    target = target_config(target_directory, OF_PUBLISHED)
    must_be(fields, _UNTIED)
    try:
        layers = read_layers(config["transformer_layer_config"])
        _check_verifier(config, layers, target, target_directory)
        tokens = _tokens(config["speculators_config"], algorithm)
        return PublishedConfig(directory, target_directory, fields, layers.within(target), target, tokens)
    except KeyError as error:
        raise IncompatibleError(f"config.json: {error.args[0]} is missing") from error


def must_be(fields: Mapping[str, Any], only: Mapping[str, Any], prefix: str = "") -> None:
    """Check fields that have only one supported value."""
    for name, value in only.items():
        if fields.get(name, value) != value:
            raise IncompatibleError(f"{prefix}{name} = {fields[name]!r}: only {value!r} is supported")


def _check_verifier(
    config: Mapping[str, Any], layers: DraftLayers, target: ModelConfig, target_directory: Path
) -> None:
    """Check that the checkpoint's description of its verifier matches the target."""
    named = verifier_fields(config).get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise IncompatibleError(
            f"speculators_config.verifier.architectures = {named!r}: must be a list of names"
        )
    architectures = read_json(target_directory / "config.json").get("architectures") or ()
    if named and architectures and not set(named) & set(architectures):
        stated = f"speculators_config.verifier.architectures = {named!r}"
        raise IncompatibleError(f"{stated}: the target {target_directory} has {list(architectures)!r}")
    layer_config = layers.config
    width = config.get("target_hidden_size") or layer_config.hidden_size
    must_equal(
        target_directory,
        ("transformer_layer_config.hidden_size", layer_config.hidden_size, target.hidden_size),
        ("transformer_layer_config.vocab_size", layer_config.vocab_size, target.vocab_size),
        ("target_hidden_size", width, target.hidden_size),
    )


def must_equal(target_directory: Path, *sizes: tuple[str, Any, int]) -> None:
    """Check sizes of a draft, (field, value, the target's value)."""
    for name, ours, theirs in sizes:
        if ours != theirs:
            raise IncompatibleError(f"{name} = {ours!r}: the target {target_directory} has {theirs}")


def _tokens(described: Mapping[str, Any], algorithm: str) -> int:
    """Return the number of drafted tokens; refuse lossy proposal methods."""
    must_be(described, {"algorithm": algorithm, "default_proposal_method": "greedy"}, "speculators_config.")
    field, methods = "speculators_config.proposal_methods", described.get("proposal_methods")
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise IncompatibleError(f"{field} = {methods!r}: must be a list of objects")
    known = {*_PROPOSAL, "speculative_tokens"}
    for method in methods:
        for name in sorted(method.keys() - known):
            raise IncompatibleError(
                f"{field}: {name} = {method[name]!r}: unknown field; known are {', '.join(sorted(known))}"
            )
        must_be(method, _PROPOSAL, f"{field}: ")
    tokens = methods[0].get("speculative_tokens") if methods else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise IncompatibleError(f"{field}: speculative_tokens = {tokens!r}: must be a positive whole number")
    return tokens
