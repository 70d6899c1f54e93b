"""OLMo 2 and 3: norms after attention and MLP.

Query and key norms are over whole rows.
"""

from typing import Any

from specinfer.model.families.base import (
    GGUF_PARTS,
    POST_NORMS,
    Family,
    Fields,
    GgufLayout,
    HeadSizes,
    TensorSource,
    llama_fields,
    replaced,
)
from specinfer.model.families.positions import fields_by_kind, windows
from specinfer.model.weights.gguf_files.metadata import GgufFile

_NAMES = {
    ".post_attention_layernorm.": ".post_self_attn_layernorm.",
    ".post_feedforward_layernorm.": ".post_mlp_layernorm.",
}


def _fields(hf: Any) -> Fields:
    own: Fields = {"pre_norm": False, "post_norm": True, "qk_norm": True, "qk_norm_rows": True}
    if hf.model_type == "olmo2":
        return llama_fields(hf) | own
    return llama_fields(hf, fields_by_kind(hf)) | own | {"windows": windows(hf, hf.layer_types)}


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    return {replaced(name, _NAMES): TensorSource(name)}


def _gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Olmo2Config, Olmo3Config

    rope, biased = file.rope(), {"attention_bias": file.has_bias}
    if not file.meta.has("attention.sliding_window"):
        return Olmo2Config, biased | {"rope_parameters": rope}
    local = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return Olmo3Config, biased | {
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
        "sliding_window": file.meta.count("attention.sliding_window"),
        "layer_types": file.layer_kinds(4),
    }


OLMO = Family(
    model_types=("olmo2", "olmo3"),
    fields=_fields,
    rename=_rename,
    gguf={"olmo2": GgufLayout(GGUF_PARTS | POST_NORMS, _gguf)},
)
