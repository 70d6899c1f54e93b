"""Phi-3, Phi-4 and Phi-4-mini: fused projections, partial rotary positions.

LongRoPE uses the factors for short texts; contexts beyond the original length are not served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specinfer.model.families.base import (
    GGUF_PARTS,
    Family,
    Fields,
    GgufLayout,
    HeadSizes,
    TensorSource,
    llama_fields,
    nth_part,
)
from specinfer.model.families.positions import rotary, windows
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.metadata import ROPE_LONG, ROPE_SHORT, GgufFile

_QKV, _GATE_UP = ".self_attn.qkv_proj.", ".mlp.gate_up_proj."
_PARTS = {name: GGUF_PARTS[name] for name in ("self_attn.o_proj", "mlp.down_proj")} | {
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _fields(hf: Any) -> Fields:
    inv_freq, scale = rotary(hf, partial=True)
    return llama_fields(hf, {"inv_freq": inv_freq, "rotary_scale": scale, "windows": windows(hf, None)})


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    if _QKV in name:
        query, key = heads.query * heads.size, (heads.query + heads.key_value) * heads.size
        ends = (0, query, key, key + heads.key_value * heads.size)
        return {
            name.replace(_QKV, f".self_attn.{part}_proj."): TensorSource(
                name, _rows(ends[place], ends[place + 1])
            )
            for place, part in enumerate("qkv")
        }
    if _GATE_UP in name:
        return {
            name.replace(_GATE_UP, f".mlp.{part}_proj."): TensorSource(name, nth_part(which, 2))
            for which, part in enumerate(("gate", "up"))
        }
    return {name: TensorSource(name)}


def _rows(start: int, stop: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda fused: fused[start:stop]


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Phi3Config

    meta = file.meta
    kind = str(meta.get("rope.scaling.type", "none"))
    if kind not in ("none", "longrope"):
        raise meta.refused("rope.scaling.type", "none and longrope are supported")
    original = meta.count("rope.scaling.original_context_length", meta.count("context_length"))
    rope: Fields = {
        "rope_type": "default",
        "rope_theta": meta.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": meta.count("rope.dimension_count", file.head_dim) / file.head_dim,
    }
    if ROPE_SHORT in file.factors and ROPE_LONG in file.factors:
        rope |= {
            "rope_type": "longrope",
            "short_factor": list(file.factors[ROPE_SHORT]),
            "long_factor": list(file.factors[ROPE_LONG]),
            "attention_factor": meta.number("rope.scaling.attn_factor", 1.0),
            "original_max_position_embeddings": original,
        }
    elif file.factors or kind == "longrope":
        tensors = f"the tensors {ROPE_SHORT} and {ROPE_LONG}, not {[*file.factors]}"
        raise meta.refused("rope.scaling.type", f"longrope needs {tensors}")
    window = meta.optional_count("attention.sliding_window") or None
    own = {"rope_parameters": rope, "original_max_position_embeddings": original, "sliding_window": window}
    return Phi3Config, own


PHI = Family(model_types=("phi3",), fields=_fields, rename=_rename, gguf={"phi3": GgufLayout(_PARTS, _gguf)})
