"""Mixtures of experts: Qwen 2 and 3, Mixtral, OLMoE, Granite 3, gpt-oss."""

from __future__ import annotations

from functools import partial
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import GGUF_PARTS, Family, Fields, GgufLayout, llama_fields
from specinfer.model.families.experts import (
    GGUF_SHARED,
    Experts,
    Stacks,
    expert_counts,
    expert_size,
    gguf_experts,
    qwen_experts,
    rename_experts,
    shared_size,
)
from specinfer.model.families.granite import FACTOR_NUMBERS, granite_factors, granite_fields
from specinfer.model.families.positions import windows
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.metadata import GgufFile


def _qwen_fields(hf: Any) -> Fields:
    third = hf.model_type == "qwen3_moe"
    return llama_fields(hf) | {
        "qk_norm": third,
        "windows": windows(hf, None if third else hf.layer_types),
        "experts": qwen_experts(hf),
    }


def _qwen_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Qwen2MoeConfig, Qwen3MoeConfig

    fields = expert_counts(file, "num_experts") | {
        "rope_parameters": file.rope(),
        "use_sliding_window": False,
        "moe_intermediate_size": expert_size(file),
        "norm_topk_prob": file.meta.architecture == "qwen3moe",
    }
    if file.meta.architecture == "qwen3moe":
        return Qwen3MoeConfig, fields | {"attention_bias": file.has_bias}
    shared = {"shared_expert_intermediate_size": shared_size(file), "qkv_bias": file.has_bias}
    return Qwen2MoeConfig, fields | shared


QWEN_MOE = Family(
    model_types=("qwen2_moe", "qwen3_moe"),
    fields=_qwen_fields,
    rename=rename_experts,
    gguf={
        "qwen2moe": GgufLayout(GGUF_PARTS | gguf_experts() | GGUF_SHARED, _qwen_gguf),
        "qwen3moe": GgufLayout(GGUF_PARTS | gguf_experts(), _qwen_gguf),
    },
)


def _mixtral_fields(hf: Any) -> Fields:
    experts = Experts(hf.num_local_experts, hf.num_experts_per_tok, hf.intermediate_size, renormalised=True)
    return llama_fields(hf) | {"windows": windows(hf, None), "experts": experts}


MIXTRAL = Family(model_types=("mixtral",), fields=_mixtral_fields, rename=rename_experts)
"""Mixtral; its GGUF files have Llama's architecture."""


def _olmoe_fields(hf: Any) -> Fields:
    if hf.clip_qkv is not None and not hf.clip_qkv > 0:
        raise IncompatibleError(f"clip_qkv = {hf.clip_qkv}: must be above 0")
    chosen = (hf.num_experts, hf.num_experts_per_tok, hf.intermediate_size, bool(hf.norm_topk_prob))
    return llama_fields(hf) | {
        "qk_norm": True,
        "qk_norm_rows": True,
        "qkv_bound": hf.clip_qkv or 0.0,
        "experts": Experts(*chosen),
    }


def _olmoe_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import OlmoeConfig

    rope = {"rope_parameters": file.rope(), "attention_bias": file.has_bias}
    return OlmoeConfig, expert_counts(file, "num_experts") | rope | {"norm_topk_prob": False}


OLMOE = Family(
    model_types=("olmoe",),
    fields=_olmoe_fields,
    rename=rename_experts,
    gguf={"olmoe": GgufLayout(GGUF_PARTS | gguf_experts(), _olmoe_gguf)},
)


def _granite_fields(hf: Any) -> Fields:
    experts = Experts(hf.num_local_experts, hf.num_experts_per_tok, hf.intermediate_size, renormalised=True)
    return granite_fields(hf) | {"experts": experts}


def _granite_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import GraniteMoeConfig

    return GraniteMoeConfig, granite_factors(file) | expert_counts(file, "num_local_experts")


GRANITE_MOE = Family(
    model_types=("granitemoe",),
    fields=_granite_fields,
    numbers=FACTOR_NUMBERS,
    rename=rename_experts,
    gguf={
        "granitemoe": GgufLayout(
            GGUF_PARTS | gguf_experts("block_sparse_moe", "router"), _granite_gguf, interleaved_rope=True
        )
    },
)


def _turned(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.T.contiguous()


def _even(matrix: torch.Tensor) -> torch.Tensor:
    return _turned(matrix[:, ::2])


def _odd(matrix: torch.Tensor) -> torch.Tensor:
    return _turned(matrix[:, 1::2])


def _even_entries(vector: torch.Tensor) -> torch.Tensor:
    return vector[::2]


def _odd_entries(vector: torch.Tensor) -> torch.Tensor:
    return vector[1::2]


_GPT_OSS_STACKS: Stacks = {
    "experts.gate_up_proj": {"gate_proj.weight": _even, "up_proj.weight": _odd},
    "experts.gate_up_proj_bias": {"gate_proj.bias": _even_entries, "up_proj.bias": _odd_entries},
    "experts.down_proj": {"down_proj.weight": _turned},
    "experts.down_proj_bias": {"down_proj.bias": None},
}
"""Stacks of matrices [inputs, outputs], with gate and up columns alternating."""


def _gpt_oss_fields(hf: Any) -> Fields:
    experts = Experts(
        *(hf.num_local_experts, hf.num_experts_per_tok, hf.intermediate_size),
        renormalised=True,
        limit=hf.swiglu_limit,
        alpha=hf.swiglu_alpha,
        biased=True,
    )
    return llama_fields(hf) | {"windows": windows(hf, hf.layer_types), "sinks": True, "experts": experts}


def _gpt_oss_gguf(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import GptOssConfig

    rope = file.rope()
    if rope["rope_type"] == "yarn":
        rope |= {"truncate": False}
    return GptOssConfig, expert_counts(file, "num_local_experts") | {
        "rope_parameters": rope,
        "intermediate_size": expert_size(file),
        "sliding_window": file.meta.count("attention.sliding_window"),
        "layer_types": file.layer_kinds(2),
        "attention_bias": file.has_bias,
    }


GPT_OSS = Family(
    model_types=("gpt_oss",),
    fields=_gpt_oss_fields,
    rename=partial(rename_experts, stacks=_GPT_OSS_STACKS),
    gguf={
        "gpt-oss": GgufLayout(
            GGUF_PARTS
            | gguf_experts(router="router")
            | {"self_attn.sinks": "attn_sinks", "post_attention_layernorm": "post_attention_norm"},
            _gpt_oss_gguf,
        )
    },
)
