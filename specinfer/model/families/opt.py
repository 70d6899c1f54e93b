"""OPT: learnt positions, layer norms, a plain MLP and biases.

The table of positions begins with unused rows.
"""

from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import POSITIONS, Family, Fields, HeadSizes, TensorSource, replaced

_UNUSED_POSITIONS = 2
_NAMES = {
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".self_attn_layer_norm.": ".input_layernorm.",
    ".final_layer_norm.": ".post_attention_layernorm.",
    ".fc1.": ".mlp.up_proj.",
    ".fc2.": ".mlp.down_proj.",
}


def _fields(hf: Any) -> Fields:
    if not hf.do_layer_norm_before or hf._remove_final_layer_norm or not hf.layer_norm_elementwise_affine:
        names = ("do_layer_norm_before", "_remove_final_layer_norm", "layer_norm_elementwise_affine")
        values = ", ".join(f"{name} = {getattr(hf, name)}" for name in names)
        raise IncompatibleError(f"{values}: must be True, False, True")
    if hf.word_embed_proj_dim != hf.hidden_size:
        raise IncompatibleError(
            f"word_embed_proj_dim = {hf.word_embed_proj_dim}: must be hidden_size, {hf.hidden_size}"
        )
    return {
        "intermediate_size": hf.ffn_dim,
        "norm_eps": 1e-5,
        "activation": hf.activation_function,
        "layer_norm": True,
        "gated": False,
    }


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    _, own, part = name.rpartition("decoder.")
    if not own:  # the head; or a trained draft model, which has our names
        return {name: TensorSource(name)}
    if part == "embed_positions.weight":
        return {POSITIONS: TensorSource(name, lambda table: table[_UNUSED_POSITIONS:])}
    if part.startswith("final_layer_norm."):
        return {part.replace("final_layer_norm.", "model.norm."): TensorSource(name)}
    return {replaced(f"model.{part}", _NAMES): TensorSource(name)}


OPT = Family(model_types=("opt",), fields=_fields, rename=_rename)
