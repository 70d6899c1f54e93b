"""Names of a GGUF file's tensors and those that `transformers` gives them."""

from collections.abc import Iterator

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MATRICES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LLAMA = _MATRICES | {"post_attention_layernorm": "ffn_norm"}
_GEMMA3 = _MATRICES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LAYER_NAMES = {"llama": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA, "gemma3": _GEMMA3}
"""Architecture -> parts of a layer: name of `transformers`, name in the file."""
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, by which Llama 3.1 and later stretch positions."""


def hf_names(architecture: str, layers: int) -> Iterator[tuple[str, str]]:
    """Yield (name of `transformers`, name in the file) of all tensors that a model may have."""
    yield from _TOP.items()
    for layer in range(layers):
        for name, short in LAYER_NAMES[architecture].items():
            for kind in ("weight", "bias"):
                yield f"model.layers.{layer}.{name}.{kind}", f"blk.{layer}.{short}.{kind}"
