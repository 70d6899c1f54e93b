"""Granite 4: mostly state spaces (Mamba 2), a few attention layers; dense, or with experts."""

from typing import Any

from specinfer.model.families.base import (
    Family,
    Fields,
    HeadSizes,
    TensorSource,
    llama_fields,
    nth_part,
    replaced,
)
from specinfer.model.families.experts import Experts, rename_experts
from specinfer.model.families.granite import factor_fields
from specinfer.model.families.hybrid.mamba import check_state_space, mamba_shape, rename_state_space
from specinfer.model.families.positions import NO_ROTARY

_NAMES = {".shared_mlp.output_linear.": ".mlp.down_proj."}
_GATE_UP = ".shared_mlp.input_linear."
_ATTENTION = ("attention", "full_attention")


def _fields(hf: Any) -> Fields:
    check_state_space(hf, {"mamba_proj_bias": False, "attention_bias": False})
    recurrent = tuple(kind not in _ATTENTION for kind in hf.layer_types)
    experts = None
    if hf.num_local_experts:
        experts = Experts(
            *(hf.num_local_experts, hf.num_experts_per_tok, hf.intermediate_size),
            renormalised=True,
            shared_size=hf.shared_intermediate_size,
        )
    own = {
        "intermediate_size": hf.shared_intermediate_size,
        "experts": experts,
        "recurrent_layers": recurrent,
        "recurrent_shape": mamba_shape(hf),
    }
    if hf.position_embedding_type != "rope":
        own |= {"inv_freq": (), "layer_rotary": (NO_ROTARY,) * len(recurrent)}
    return llama_fields(hf) | factor_fields(hf) | own


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    if ".mamba." in name:
        return rename_state_space(heads, name, "mamba")
    if ".block_sparse_moe." in name:
        return rename_experts(heads, name)
    if _GATE_UP in name:
        return {
            name.replace(_GATE_UP, f".mlp.{part}_proj."): TensorSource(name, nth_part(which, 2))
            for which, part in enumerate(("gate", "up"))
        }
    return {replaced(name, _NAMES): TensorSource(name)}


GRANITE_HYBRID = Family(model_types=("granitemoehybrid",), fields=_fields, rename=_rename)
