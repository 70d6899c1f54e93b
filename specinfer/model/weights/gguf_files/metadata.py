"""Converts a GGUF file's metadata to a `transformers` configuration.

A key that affects arithmetic is either used or refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.weights.gguf_files.keys import Metadata, checked_id

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
        return "blk.0.attn_q.bias" in self.shapes

    @property
    def head_dim(self) -> int:
        return self.meta.head_dim()

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
            **_special_ids(self.meta, vocab),
        }

    def common_fields(self) -> dict[str, Any]:
        """Return the fields of `config.json` that all families with attention have."""
        meta, head_dim = self.meta, self.head_dim
        if meta.count("attention.value_length", head_dim) != head_dim:
            raise meta.refused("attention.value_length", f"must be {head_dim}, a head's size")
        if not meta.get("attention.causal", True):
            raise meta.refused("attention.causal", "must be True")
        heads, kv_heads = meta.heads()
        inner = "feed_forward_length"
        if not meta.has(inner) and meta.has(f"expert_{inner}"):  # all layers are mixtures of experts
            inner = f"expert_{inner}"
        return {
            **self.embedding_fields(),
            "intermediate_size": meta.same_count(inner),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
            "max_position_embeddings": self.context_length(),
        }

    def context_length(self) -> int:
        """Return the context, for a prompt and an answer."""
        length = self.meta.count("context_length")
        if length < 2:
            raise self.meta.refused("context_length", "must be at least 2")
        return length

    def layer_kinds(self, period: int) -> list[str]:
        """Return `layer_types`, from the file's pattern of sliding windows.

        Without a pattern in the file, every `period`-th layer has full attention.
        """
        meta, layers = self.meta, self.meta.count("block_count")
        pattern = meta.get("attention.sliding_window_pattern", period)
        if not isinstance(pattern, (list, tuple)):
            period = meta.count("attention.sliding_window_pattern", period)
            pattern = [(layer + 1) % period != 0 for layer in range(layers)]
        if len(pattern) != layers or not all(one in (0, 1) for one in pattern):
            raise meta.refused(
                "attention.sliding_window_pattern", f"must have {layers} entries of 0 or 1, one per layer"
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
    factors_stated = ("rope.scaling.factor", "rope.scale_linear")
    factor = next(filter(None, (meta.number(name, 0.0, zero=True) for name in factors_stated)), 0.0)
    if kind == "none" and factor not in (0.0, 1.0):
        kind = "linear"  # old files have no type
    original = meta.optional_count("rope.scaling.original_context_length")
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
            return plain | {"rope_type": "linear", "factor": factor or 1.0}  # 0: none, as in llama.cpp
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


def _special_ids(meta: Metadata, size: int) -> dict[str, int | None]:
    """Return the ids of special tokens, by `transformers`' names.

    Missing tokens are None, so that defaults of the family do not apply.
    """
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {
        name: checked_id(f"tokenizer.ggml.{short}_token_id", meta.other, size)
        for name, short in names.items()
    }
