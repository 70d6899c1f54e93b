"""Falcon H1: attention and a state space in every layer.

Each part has its own factors. The state space is Mamba 2.
"""

from typing import Any

from specinfer.model.families.base import Family, Fields, HeadSizes, TensorSource, llama_fields, replaced
from specinfer.model.families.hybrid.mamba import (
    MAMBA_COUNTS,
    check_state_space,
    mamba_shape,
    rename_state_space,
)
from specinfer.model.families.hybrid.mamba_gguf import FALCON_LAYOUT

_NAMES = {
    ".feed_forward.": ".mlp.",
    ".pre_ff_layernorm.": ".post_attention_layernorm.",
    "model.final_layernorm.": "model.norm.",
}


def _fields(hf: Any) -> Fields:
    unbiased = ("attention_bias", "mamba_proj_bias", "projectors_bias")
    check_state_space(
        hf, dict.fromkeys(unbiased, False) | ({"mamba_norm_before_gate": False} if hf.mamba_rms_norm else {})
    )
    llama = llama_fields(hf)
    read, (gate, down) = hf.attention_in_multiplier, hf.mlp_multipliers
    z, x, b, c, dt = (hf.ssm_in_multiplier * factor for factor in hf.ssm_multipliers)
    return llama | {
        "embedding_scale": hf.embedding_multiplier,
        "logit_scale": hf.lm_head_multiplier,
        "attention_scale": llama["head_dim"] ** -0.5 * read * read * hf.key_multiplier,
        "factors": {
            "out": read * hf.attention_out_multiplier,
            "gate": gate,
            "down": down,
            "output_gates": z,
            "state_gates": dt,
            "state_out": hf.ssm_out_multiplier,
        },
        "recurrent_layers": (True,) * hf.num_hidden_layers,
        "recurrent_attends": True,
        "recurrent_shape": mamba_shape(hf, (c, b, x)),
    }


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    if ".mamba." in name:
        return rename_state_space(heads, name, "mamba")
    return {replaced(name, _NAMES): TensorSource(name)}


_FACTORS = (
    *("embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier"),
    *("attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"),
)
FALCON_H1 = Family(
    model_types=("falcon_h1",),
    fields=_fields,
    rename=_rename,
    gguf={"falcon-h1": FALCON_LAYOUT},
    counts=(*MAMBA_COUNTS, "mamba_d_ssm", "intermediate_size"),
    numbers={**dict.fromkeys(_FACTORS, 0), "mlp_multipliers": 2, "ssm_multipliers": 5},
)
