"""The metadata of a GGUF file as a configuration of `transformers`; every key about arithmetic is used or refused."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.weights.gguf_files.names import LAYER_NAMES

_ABOUT_MODELS = ("general.", "tokenizer.", "split.", "quantize.", "GGUF.")
"""Prefixes of keys that decide nothing about arithmetic, or that are checked apart."""
_LARGEST_COUNT = 1 << 31
_LARGEST_GEMMA3 = 62
"""Layers of Gemma 3 27B, whose attention is scaled otherwise (llama.cpp decides by them too)."""


class Metadata:
    """Values of a file, and which of them were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Check that a model's architecture is known.

        Raises:
            IncompatibleError: naming it.
        """
        self._values, self._used = values, set[str]()
        self.architecture = str(values.get("general.architecture"))
        kind = values.get("general.type", "model")
        if kind != "model":
            raise IncompatibleError(f"general.type = {kind!r}: the GGUF file holds no model")
        if self.architecture not in LAYER_NAMES:
            known = ", ".join(LAYER_NAMES)
            raise IncompatibleError(f"GGUF architecture = {self.architecture!r}: supported are {known}")

    def has(self, name: str) -> bool:
        """Return whether the architecture has a value of this name."""
        return f"{self.architecture}.{name}" in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of the architecture; without a default it must be there."""
        key = f"{self.architecture}.{name}"
        self._used.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise IncompatibleError(f"the GGUF file has no field {key}")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """Return a value that must be a whole number above zero."""
        value = self.get(name, default)
        whole = 0 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
        if not 0 < whole < _LARGEST_COUNT:
            raise IncompatibleError(f"GGUF: {self.architecture}.{name} = {value!r}: must be a count")
        return whole

    def number(self, name: str, default: float | None = None) -> float:
        """Return a value that must be a number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise IncompatibleError(f"GGUF: {self.architecture}.{name} = {value!r}: must be a number")
        return float(value)

    def other(self, key: str) -> Any:
        """Return a value of any key; None if there is none."""
        return self._values.get(key)

    def check_used(self) -> None:
        """Refuse keys that nothing asked for, unless they say that there is nothing."""
        for key, value in self._values.items():
            if key in self._used or key.startswith(_ABOUT_MODELS):
                continue
            if not (key.rpartition(".")[2] in ("expert_count", "expert_used_count") and value == 0):
                shown = value if not isinstance(value, Sequence) or len(value) < 9 else "..."
                raise IncompatibleError(f"GGUF: {key} = {shown!r}: is not understood")


def gguf_config(meta: Metadata, shapes: Mapping[str, Sequence[int]], factors: Sequence[float] | None) -> Any:
    """Return the `transformers` configuration of a GGUF file.

    Args:
        shapes: of all tensors, by their names in the file.
        factors: `rope_freqs.weight`, if the file has it.

    Raises:
        IncompatibleError: naming keys that are missing, contradict each other or are not understood.
    """
    heads = one_count(meta, "attention.head_count")
    hidden = meta.count("embedding_length")
    head_dim = meta.count("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if meta.count(name, head_dim) != head_dim:
            raise IncompatibleError(f"GGUF: {name} = {meta.get(name)}: must be that of a head, {head_dim}")
    if "token_embd.weight" not in shapes:
        raise IncompatibleError("the GGUF file lacks token_embd.weight")
    vocab = shapes["token_embd.weight"][0]
    if meta.count("vocab_size", vocab) != vocab:
        raise IncompatibleError(
            f"GGUF: vocab_size = {meta.get('vocab_size')}: token_embd.weight has {vocab} rows"
        )
    common = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": one_count(meta, "feed_forward_length"),
        "num_hidden_layers": meta.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": one_count(meta, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": meta.count("context_length"),
        "tie_word_embeddings": "output.weight" not in shapes,
    }
    if not meta.get("attention.causal", True):
        raise IncompatibleError("GGUF: attention.causal = False: is not supported")
    rope = rope_parameters(meta, head_dim // 2, factors, 10000.0)
    own = _FAMILIES[meta.architecture](meta, shapes, common, rope)
    meta.check_used()
    return own(**common, **_special_ids(meta))


def rope_parameters(
    meta: Metadata, half: int, factors: Sequence[float] | None, base: float
) -> dict[str, Any]:
    """Return the rotary positions as `transformers` describes them."""
    plain = {"rope_theta": meta.number("rope.freq_base", base)}
    kind = str(meta.get("rope.scaling.type", "none"))
    factor = meta.number("rope.scaling.factor", 0.0) or meta.number("rope.scale_linear", 0.0)
    if kind == "none" and factor not in (0.0, 1.0):
        kind = "linear"  # as files had it before there was a type
    original = int(meta.number("rope.scaling.original_context_length", 0))
    meta.get("rope.scaling.finetuned", True)
    if factors is not None:
        if kind != "none" or len(factors) != half:
            raise IncompatibleError(
                f"GGUF: rope_freqs.weight of {len(factors)} numbers beside rope.scaling.type = {kind!r}"
            )
        # the one kind whose frequencies are divided by numbers of a list; the same for short texts and long
        each = {"short_factor": list(factors), "long_factor": list(factors), "attention_factor": 1.0}
        length = meta.count("context_length")
        return plain | each | {"rope_type": "longrope", "original_max_position_embeddings": length}
    match kind:
        case "none":
            return plain | {"rope_type": "default"}
        case "linear":
            return plain | {"rope_type": "linear", "factor": factor}
        case "yarn":
            return plain | _yarn(meta, factor, original)
    raise IncompatibleError(f"GGUF: rope.scaling.type = {kind!r}: none, linear and yarn are supported")


def _yarn(meta: Metadata, factor: float, original: int) -> dict[str, Any]:
    if not (factor and original):
        raise IncompatibleError("GGUF: rope.scaling.type = 'yarn' without factor or original_context_length")
    found: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for name, key in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if meta.has(f"rope.scaling.{name}"):
            found[key] = meta.number(f"rope.scaling.{name}")
    return found


def one_count(meta: Metadata, name: str, default: int | None = None) -> int:
    """Return a number that some files have for each layer, where it must be the same."""
    value = meta.get(name, default)
    if not isinstance(value, (list, tuple)):
        return meta.count(name, default)
    values = set(value)
    if len(values) != 1:
        raise IncompatibleError(
            f"GGUF: {meta.architecture}.{name} differs from layer to layer: {sorted(values)}"
        )
    return int(values.pop())


def _special_ids(meta: Metadata) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: meta.other(f"tokenizer.ggml.{short}_token_id") for name, short in names.items()}
    return {name: int(value) for name, value in found.items() if value is not None}


Fields = dict[str, Any]
_Make = Callable[[Metadata, Mapping[str, Sequence[int]], Fields, Fields], Any]
"""Adds a family's own fields, and returns its class of configurations."""


def _llama(meta: Metadata, shapes: Mapping[str, Sequence[int]], common: Fields, rope: Fields) -> Any:
    from transformers import LlamaConfig, MistralConfig

    common |= {"rope_parameters": rope}
    if meta.has("attention.sliding_window"):
        common |= {"sliding_window": int(meta.number("attention.sliding_window")) or None}
        return MistralConfig
    common |= {"attention_bias": "blk.0.attn_q.bias" in shapes}
    return LlamaConfig


def _qwen(meta: Metadata, shapes: Mapping[str, Sequence[int]], common: Fields, rope: Fields) -> Any:
    from transformers import Qwen2Config, Qwen3Config

    common |= {"rope_parameters": rope, "use_sliding_window": False}
    if meta.architecture == "qwen2":
        return Qwen2Config
    common |= {"attention_bias": "blk.0.attn_q.bias" in shapes}
    return Qwen3Config


def _gemma3(meta: Metadata, shapes: Mapping[str, Sequence[int]], common: Fields, rope: Fields) -> Any:
    from transformers import Gemma3TextConfig

    pattern = meta.count("attention.sliding_window_pattern", 6)
    layers, heads = common["num_hidden_layers"], common["num_attention_heads"]
    scale = common["hidden_size"] // heads if layers == _LARGEST_GEMMA3 else common["head_dim"]
    local = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base_swa", 10000.0)}
    kinds = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)]
    common |= {
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
        "sliding_window": meta.count("attention.sliding_window"),
        "query_pre_attn_scalar": scale,
        "layer_types": kinds,
    }
    return Gemma3TextConfig


_FAMILIES: dict[str, _Make] = {"llama": _llama, "qwen2": _qwen, "qwen3": _qwen, "gemma3": _gemma3}
