"""LFM2: short convolutions in place of most attention layers."""

from __future__ import annotations

from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import (
    Family,
    Fields,
    GgufLayout,
    HeadSizes,
    RecurrentShape,
    TensorSource,
    nth_part,
    replaced,
)
from specinfer.model.families.positions import FULL, rotary
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.keys import Metadata
from specinfer.model.weights.gguf_files.metadata import GgufFile

CONVOLUTION = "conv"
"""Name of recurrent layers in `layer_types`."""
_NAMES = {
    ".operator_norm.": ".input_layernorm.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".feed_forward.w1.": ".mlp.gate_proj.",
    ".feed_forward.w3.": ".mlp.up_proj.",
    ".feed_forward.w2.": ".mlp.down_proj.",
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".q_layernorm.": ".q_norm.",
    ".k_layernorm.": ".k_norm.",
    ".conv.conv.": ".linear_attn.conv1d.",
    ".conv.out_proj.": ".linear_attn.out_proj.",
    "model.embedding_norm.": "model.norm.",
}
_FUSED = ".conv.in_proj."
_CONVOLUTION_WEIGHT = ".conv.conv.weight"
_PARTS = {
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    **{f"conv.{name}": f"shortconv.{name}" for name in ("in_proj", "conv", "out_proj")},
}


def _fields(hf: Any) -> Fields:
    if hf.conv_bias:
        raise IncompatibleError("conv_bias = True: must be False")
    if unknown := [kind for kind in hf.layer_types if kind not in (FULL, CONVOLUTION)]:
        raise IncompatibleError(f"layer_types: {unknown[0]!r}: supported are {FULL}, {CONVOLUTION}")
    inv_freq, scale = rotary(hf)
    return {
        "inv_freq": inv_freq,
        "rotary_scale": scale,
        "intermediate_size": _intermediate(hf),
        "kv_heads": hf.num_key_value_heads,
        "norm_eps": hf.norm_eps,
        "activation": "silu",
        "qk_norm": True,
        "recurrent_layers": tuple(kind == CONVOLUTION for kind in hf.layer_types),
        "recurrent_shape": RecurrentShape("short_convolution", 0, 1, 0, hf.hidden_size, hf.conv_L_cache),
    }


def _intermediate(hf: Any) -> int:
    """Return the MLP's inner size, adjusted if `block_auto_adjust_ff_dim`."""
    size = int(hf.intermediate_size)
    if not hf.block_auto_adjust_ff_dim:
        return size
    size = int(2 * size / 3)
    if hf.block_ffn_dim_multiplier is None:
        return size
    multiple = int(hf.block_multiple_of)
    return -(-int(hf.block_ffn_dim_multiplier * size) // multiple) * multiple


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    if _FUSED in name:
        return {
            name.replace(_FUSED, f".linear_attn.in_proj_{part}."): TensorSource(name, nth_part(which, 3))
            for which, part in enumerate(("qkv", "z", "x"))
        }
    return {replaced(name, _NAMES): TensorSource(name)}


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Lfm2Config

    meta = file.meta
    heads = meta.layer_values("attention.head_count_kv")
    return Lfm2Config, {
        "rope_parameters": file.rope(),
        "norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "layer_types": [FULL if count else CONVOLUTION for count in heads],
        "conv_L_cache": meta.count("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
    }


def _undo(meta: Metadata, name: str, tensor: torch.Tensor, block: int) -> torch.Tensor | None:
    return tensor[:, None] if name.endswith(_CONVOLUTION_WEIGHT) else tensor


_TOP = {"model.embedding_norm.weight": "token_embd_norm.weight"}
_LAYOUT = GgufLayout(_PARTS, _gguf, undo_converter=_undo, top=_TOP)
LFM2 = Family(
    model_types=("lfm2",),
    fields=_fields,
    rename=_rename,
    gguf={"lfm2": _LAYOUT},
    counts=("intermediate_size", "block_multiple_of", "conv_L_cache"),
    numbers={"block_ffn_dim_multiplier": 0},
)
