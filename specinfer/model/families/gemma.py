"""Gemma 1 to 3: norms of 1 + w, and scaled embeddings.

Gemma 2 and 3 also have norms after attention and MLP. Gemma 2 has soft caps; Gemma 3 has norms of heads, and other
rotary frequencies in layers with a window.
"""

from __future__ import annotations

from typing import Any

from specinfer.errors import IncompatibleError
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
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.metadata import GgufFile

_NAMES = {
    ".post_attention_layernorm.": ".post_self_attn_layernorm.",
    ".pre_feedforward_layernorm.": ".post_attention_layernorm.",
    ".post_feedforward_layernorm.": ".post_mlp_layernorm.",
}
_LARGEST = {"gemma2": 46, "gemma3": 62}
"""Number of layers of 27B models, which scale attention differently."""


def _raised(weight: torch.Tensor) -> torch.Tensor:
    return weight.float() + 1


def _first_fields(hf: Any) -> Fields:
    if hf.use_bidirectional_attention:
        raise IncompatibleError("use_bidirectional_attention = True: must be False")
    kinds = fields_by_kind(hf) if hf.model_type == "gemma3_text" else {}
    return llama_fields(hf, kinds) | {"embedding_scale": hf.hidden_size**0.5}


def _fields(hf: Any) -> Fields:
    second = hf.model_type == "gemma2"
    own = {
        "post_norm": True,
        "attention_scale": hf.query_pre_attn_scalar**-0.5,
        "score_cap": (second and hf.attn_logit_softcapping) or 0.0,
        "logit_cap": hf.final_logit_softcapping or 0.0,
        "qk_norm": not second,
        "windows": windows(hf, hf.layer_types),
    }
    return _first_fields(hf) | own


def _first_rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    return {name: TensorSource(name, _raised if name.endswith("norm.weight") else None)}


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    (source,) = _first_rename(heads, name).values()
    return {replaced(name, _NAMES): source}


def _first_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import GemmaConfig

    return GemmaConfig, {"rope_parameters": file.rope()}


def _second_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Gemma2Config

    own = {
        "rope_parameters": file.rope(),
        "sliding_window": file.meta.count("attention.sliding_window", 4096),
        "layer_types": file.layer_kinds(2),
        "query_pre_attn_scalar": _scalar(file),
        "attn_logit_softcapping": file.meta.number("attn_logit_softcapping", 50.0, zero=True) or None,
        "final_logit_softcapping": file.meta.number("final_logit_softcapping", 30.0, zero=True) or None,
    }
    return Gemma2Config, own


def _third_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Gemma3TextConfig

    local = {"rope_type": "default", "rope_theta": file.meta.number("rope.freq_base_swa", 10000.0)}
    own = {
        "rope_parameters": {"full_attention": file.rope(), "sliding_attention": local},
        "sliding_window": file.meta.count("attention.sliding_window"),
        "layer_types": file.layer_kinds(6),
        "query_pre_attn_scalar": _scalar(file),
        "final_logit_softcapping": file.meta.number("final_logit_softcapping", 0.0, zero=True) or None,
    }
    return Gemma3TextConfig, own


def _scalar(file: GgufFile) -> int:
    meta = file.meta
    if meta.count("block_count") != _LARGEST[meta.architecture]:
        return file.head_dim
    return meta.count("embedding_length") // meta.heads()[0]


_PARTS = GGUF_PARTS | POST_NORMS | {"pre_feedforward_layernorm": "ffn_norm"}
GEMMA = Family(
    model_types=("gemma",),
    fields=_first_fields,
    rename=_first_rename,
    gguf={"gemma": GgufLayout(GGUF_PARTS, _first_gguf, norms_plus_one=True)},
)
GEMMA_2_3 = Family(
    model_types=("gemma2", "gemma3_text"),
    fields=_fields,
    rename=_rename,
    gguf={
        "gemma2": GgufLayout(_PARTS, _second_gguf, norms_plus_one=True),
        "gemma3": GgufLayout(_PARTS, _third_gguf, norms_plus_one=True),
    },
)
