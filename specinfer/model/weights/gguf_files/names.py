"""Names of a GGUF file's tensors and those that `transformers` gives them."""

from collections.abc import Iterator, Mapping

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, by which Llama 3.1 and later stretch positions."""
ROPE_SHORT, ROPE_LONG = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors for texts up to the original length, and for longer ones (LongRoPE)."""
ROPE_TENSORS = frozenset({ROPE_FACTORS, ROPE_SHORT, ROPE_LONG})


def hf_names(parts: Mapping[str, str], layers: int) -> Iterator[tuple[str, str]]:
    """Yield (name of `transformers`, name in the file) of all tensors that a model may have.

    `parts` are those of a layer.
    """
    yield from _TOP.items()
    for layer in range(layers):
        for name, short in parts.items():
            for kind in ("weight", "bias"):
                yield f"model.layers.{layer}.{name}.{kind}", f"blk.{layer}.{short}.{kind}"
