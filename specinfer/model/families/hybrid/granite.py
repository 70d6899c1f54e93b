"""Granite 4: state spaces (Mamba 2) and few attention layers.

Layers are dense or have experts.
"""

from typing import Any

from specinfer.errors import IncompatibleError
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
from specinfer.model.families.granite import FACTOR_NUMBERS, factor_fields
from specinfer.model.families.hybrid.mamba import (
    MAMBA_COUNTS,
    check_state_space,
    mamba_shape,
    rename_state_space,
)
from specinfer.model.families.hybrid.mamba_gguf import GRANITE_LAYOUT, joined_shared
from specinfer.model.families.positions import FULL, LINEAR, NO_ROTARY

_NAMES = {".shared_mlp.output_linear.": ".mlp.down_proj.", ".shared_mlp.": ".mlp."}
_GATE_UP = ".shared_mlp.input_linear."
_KINDS = {"attention": False, FULL: False, "mamba": True, LINEAR: True}
"""Kind of a layer in `layer_types` -> whether it is recurrent."""
_POSITIONS = ("rope", "nope", None)


def _fields(hf: Any) -> Fields:
    check_state_space(hf, {"mamba_proj_bias": False, "attention_bias": False})
    if unknown := [kind for kind in hf.layer_types if kind not in _KINDS]:
        raise IncompatibleError(f"layer_types: {unknown[0]!r}: supported are {', '.join(_KINDS)}")
    recurrent = tuple(_KINDS[kind] for kind in hf.layer_types)
    if type(hf.num_local_experts) is not int:
        raise IncompatibleError(f"num_local_experts = {hf.num_local_experts!r}: must be a whole number")
    if hf.position_embedding_type not in _POSITIONS:
        raise IncompatibleError(
            f"position_embedding_type = {hf.position_embedding_type!r}: supported are rope, nope"
        )
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


GRANITE_HYBRID = Family(
    model_types=("granitemoehybrid",),
    fields=_fields,
    rename=_rename,
    gguf={"granitehybrid": GRANITE_LAYOUT},
    to_transformers=joined_shared,
    counts=(*MAMBA_COUNTS, "intermediate_size", "shared_intermediate_size"),
    numbers=FACTOR_NUMBERS,
)
