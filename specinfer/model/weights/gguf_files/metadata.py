"""Converts a GGUF file's metadata to a `transformers` configuration.

A key that affects arithmetic is either used or refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from specinfer.errors import IncompatibleError

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
"""Tensor of divisors of the rotary frequencies (Llama 3.1 and later)."""
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors of divisors up to the original context length, and beyond (LongRoPE)."""
ROPE_TENSORS = frozenset({ROPE_FACTORS, ROPE_SHORT, ROPE_LONG})


def hf_names(
    parts: Mapping[str, str],
    layers: range,
    tensors: Mapping[str, str],
    top: Mapping[str, str],
    prefix: str = "model.layers",
) -> Iterator[tuple[str, str]]:
    """Yield pairs of names, `transformers` and GGUF, of all possible tensors.

    Args:
        parts: modules of a layer, with weight and bias.
        tensors: other tensors of a layer, by full name.
        top: tensors outside the layers.
    """
    yield from top.items()
    yield from ((name, stored) for name, stored in _TOP.items() if stored not in top.values())
    for layer in layers:
        for name, stored in tensors.items():
            yield f"{prefix}.{layer}.{name}", f"blk.{layer}.{stored}"
        for name, short in parts.items():
            for kind in ("weight", "bias"):
                yield f"{prefix}.{layer}.{name}.{kind}", f"blk.{layer}.{short}.{kind}"


_ABOUT_MODELS = ("general.", "tokenizer.", "split.", "quantize.", "GGUF.")
"""Prefixes of keys without effect on arithmetic, or checked by other code."""
_LARGEST_COUNT = 1 << 31


class Metadata:
    """Metadata of a GGUF file; records which values were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Check that the file contains a model.

        Raises:
            IncompatibleError: if `general.type` is not "model".
        """
        self._values, self._used = values, set[str]()
        self.architecture = str(values.get("general.architecture"))
        kind = values.get("general.type", "model")
        if kind != "model":
            raise IncompatibleError(f"GGUF: general.type = {kind!r}: must be 'model'")

    def has(self, name: str) -> bool:
        """Return whether the architecture has a key of this name."""
        return f"{self.architecture}.{name}" in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a key of the architecture.

        Raises:
            IncompatibleError: if the key is missing and there is no default.
        """
        key = f"{self.architecture}.{name}"
        self._used.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise IncompatibleError(f"the GGUF file lacks the key {key}")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """Return a key's value, which must be a whole number above 0."""
        value = self.get(name, default)
        whole = 0 if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
        if not 0 < whole < _LARGEST_COUNT:
            raise self.refused(name, "must be a whole number above 0")
        return whole

    def number(self, name: str, default: float | None = None) -> float:
        """Return the value of a key; it must be a number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise self.refused(name, "must be a number")
        return float(value)

    def layer_values(self, name: str) -> list[Any]:
        """Return a key's value, which must be a list, one per layer."""
        values = self.get(name)
        if not isinstance(values, list) or len(values) != self.layers:
            raise self.refused(name, f"must have {self.layers} values, one per layer")
        return values

    def refused(self, name: str, reason: str) -> IncompatibleError:
        """Return the error of a key of the architecture, with its value."""
        key = f"{self.architecture}.{name}"
        return IncompatibleError(f"GGUF: {key} = {self._values.get(key)!r:.80}: {reason}")

    @property
    def layers(self) -> int:
        """Number of layers, without layers for multi-token prediction."""
        further = self.get("nextn_predict_layers", 0)
        return self.count("block_count") - (self.count("nextn_predict_layers") if further else 0)

    def other(self, key: str) -> Any:
        """Return the value of a full key, such as `general.name`, or None."""
        return self._values.get(key)

    def check_used(self) -> None:
        """Refuse keys that were not read, unless they count 0 experts."""
        for key, value in self._values.items():
            if key in self._used or key.startswith(_ABOUT_MODELS):
                continue
            if not (key.rpartition(".")[2] in ("expert_count", "expert_used_count") and value == 0):
                shown = value if not isinstance(value, Sequence) or len(value) < 9 else "..."
                raise IncompatibleError(f"GGUF: {key} = {shown!r}: is not supported")


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's metadata, shapes of tensors, and rotary divisors."""

    meta: Metadata
    shapes: Mapping[str, Sequence[int]]
    """Shapes of all tensors, by name in the file."""
    factors: Mapping[str, Sequence[float]]
    """Divisors of the rotary frequencies, by name of the tensor."""

    @property
    def has_bias(self) -> bool:
        """True if attention's query projections have biases."""
        return "blk.0.attn_q.bias" in self.shapes

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        heads = one_count(self.meta, "attention.head_count")
        return self.meta.count("attention.key_length", self.meta.count("embedding_length") // heads)

    def rope(self, base: float = 10000.0) -> dict[str, Any]:
        """Return the rotary settings in `transformers`' fields."""
        whole, turned = self.head_dim, self.meta.count("rope.dimension_count", self.head_dim)
        if turned != whole:
            raise self.meta.refused("rope.dimension_count", f"must be {whole}, a head's size")
        return rope_parameters(self.meta, whole // 2, self.factors.get(ROPE_FACTORS), base)

    def embedding_fields(self) -> dict[str, Any]:
        """Return the fields of `config.json` that all families have."""
        if "token_embd.weight" not in self.shapes:
            raise IncompatibleError("the GGUF file lacks token_embd.weight")
        vocab = self.shapes["token_embd.weight"][0]
        if self.meta.count("vocab_size", vocab) != vocab:
            raise self.meta.refused("vocab_size", f"must be {vocab}, the rows of token_embd.weight")
        return {
            "vocab_size": vocab,
            "hidden_size": self.meta.count("embedding_length"),
            "num_hidden_layers": self.meta.layers,
            "tie_word_embeddings": "output.weight" not in self.shapes,
            **_special_ids(self.meta),
        }

    def common_fields(self) -> dict[str, Any]:
        """Return the fields of `config.json` that all families with attention have."""
        meta, head_dim = self.meta, self.head_dim
        if meta.count("attention.value_length", head_dim) != head_dim:
            raise meta.refused("attention.value_length", f"must be {head_dim}, a head's size")
        if not meta.get("attention.causal", True):
            raise meta.refused("attention.causal", "must be True")
        heads = one_count(meta, "attention.head_count")
        inner = "feed_forward_length"
        if not meta.has(inner) and meta.has(f"expert_{inner}"):  # all layers are mixtures of experts
            inner = f"expert_{inner}"
        return {
            **self.embedding_fields(),
            "intermediate_size": one_count(meta, inner),
            "num_attention_heads": heads,
            "num_key_value_heads": one_count(meta, "attention.head_count_kv", heads),
            "head_dim": head_dim,
            "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": meta.count("context_length"),
        }

    def layer_kinds(self, period: int) -> list[str]:
        """Return `layer_types`, from the file's pattern of sliding windows.

        Without a pattern in the file, every `period`-th layer has full attention.
        """
        meta, layers = self.meta, self.meta.count("block_count")
        pattern = meta.get("attention.sliding_window_pattern", period)
        if not isinstance(pattern, (list, tuple)):
            period = meta.count("attention.sliding_window_pattern", period)
            pattern = [(layer + 1) % period != 0 for layer in range(layers)]
        if len(pattern) != layers:
            raise meta.refused(
                "attention.sliding_window_pattern", f"must have {layers} entries, one per layer"
            )
        return ["sliding_attention" if sliding else "full_attention" for sliding in pattern]


def rope_parameters(
    meta: Metadata, half: int, factors: Sequence[float] | None, base: float
) -> dict[str, Any]:
    """Return the rotary settings in `transformers`' fields.

    Args:
        half: number of rotary frequencies.
        factors: their divisors, if the file has some.
        base: rope_theta, if the file has none.
    """
    plain = {"rope_theta": meta.number("rope.freq_base", base)}
    kind = str(meta.get("rope.scaling.type", "none"))
    factor = meta.number("rope.scaling.factor", 0.0) or meta.number("rope.scale_linear", 0.0)
    if kind == "none" and factor not in (0.0, 1.0):
        kind = "linear"  # old files have no type
    original = int(meta.number("rope.scaling.original_context_length", 0))
    meta.get("rope.scaling.finetuned", True)
    if factors is not None:
        if kind != "none" or len(factors) != half:
            raise IncompatibleError(
                f"GGUF: rope_freqs.weight has {len(factors)} numbers, rope.scaling.type is {kind!r}: "
                f"must have {half}, and type none"
            )
        # LongRoPE is the only type with lists of divisors; here they are equal for short and long contexts
        scaling = {"short_factor": list(factors), "long_factor": list(factors), "attention_factor": 1.0}
        length = meta.count("context_length")
        return plain | scaling | {"rope_type": "longrope", "original_max_position_embeddings": length}
    match kind:
        case "none":
            return plain | {"rope_type": "default"}
        case "linear":
            return plain | {"rope_type": "linear", "factor": factor}
        case "yarn":
            return plain | _yarn(meta, factor, original)
    raise meta.refused("rope.scaling.type", "none, linear and yarn are supported")


def _yarn(meta: Metadata, factor: float, original: int) -> dict[str, Any]:
    if not (factor and original):
        missing = "original_context_length" if factor else "factor"
        raise meta.refused(f"rope.scaling.{missing}", "must be above 0 with rope.scaling.type = 'yarn'")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    for name, key in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if meta.has(f"rope.scaling.{name}"):
            scaling[key] = meta.number(f"rope.scaling.{name}")
    return scaling


def one_count(meta: Metadata, name: str, default: int | None = None) -> int:
    """Return a number that must be equal in all layers with attention.

    A file stores one number, or a list with one per layer.
    """
    value = meta.get(name, default)
    if not isinstance(value, (list, tuple)):
        return meta.count(name, default)
    values = set(value) - {0}  # without layers that have no attention
    if len(values) != 1:
        raise IncompatibleError(
            f"GGUF: {meta.architecture}.{name} = {sorted(values)}: must be equal in all layers"
        )
    return int(values.pop())


def _special_ids(meta: Metadata) -> dict[str, int | None]:
    """Return the ids of special tokens, by `transformers`' names.

    Missing tokens are None, so that defaults of the family do not apply.
    """
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: meta.other(f"tokenizer.ggml.{short}_token_id") for name, short in names.items()}
    return {name: None if value is None else int(value) for name, value in ids.items()}
