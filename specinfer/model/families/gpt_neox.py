"""GPT-NeoX and Pythia: partial rotary positions, parallel attention and MLP.

They have layer norms and biases. One matrix has query, key and value rows, head by head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specinfer.model.families.base import Family, Fields, HeadSizes, TensorSource, replaced
from specinfer.model.families.positions import rotary
from specinfer.model.lazy_torch import torch

_NAMES = {
    ".attention.dense.": ".self_attn.o_proj.",
    ".mlp.dense_h_to_4h.": ".mlp.up_proj.",
    ".mlp.dense_4h_to_h.": ".mlp.down_proj.",
    "model.embed_in.": "model.embed_tokens.",
    "model.final_layer_norm.": "model.norm.",
}


def _fields(hf: Any) -> Fields:
    inv_freq, scale = rotary(hf, partial=True)
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


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    if name == "embed_out.weight":
        return {"lm_head.weight": TensorSource(name)}
    if not name.startswith("gpt_neox."):  # a trained draft model has our names
        return {name: TensorSource(name)}
    ours = f"model.{name.removeprefix('gpt_neox.')}"
    if ".attention.query_key_value." not in ours:
        return {replaced(ours, _NAMES): TensorSource(name)}

    def third(which: int) -> Callable[[torch.Tensor], torch.Tensor]:
        shape = (heads.query, 3, heads.size)
        return lambda fused: fused.reshape(*shape, *fused.shape[1:])[:, which].flatten(0, 1)

    return {
        ours.replace("attention.query_key_value", f"self_attn.{part}_proj"): TensorSource(name, third(which))
        for which, part in enumerate("qkv")
    }


GPT_NEOX = Family(model_types=("gpt_neox",), fields=_fields, rename=_rename)
