"""Undoes the changes of llama.cpp's converter to Qwen 3.5 and 3 Next.

The converter stores norms as 1 + w, and decays A in place of log(-A). Qwen 3.5's value heads are in another order: the
first head of each key head's group, then the second of each group, and so on; `transformers` has them group by group.
Qwen 3 Next has one matrix with all queries, then keys, then values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specinfer.model.families.base import GGUF_PARTS, Fields, GgufLayout
from specinfer.model.families.experts import (
    GGUF_SHARED,
    expert_counts,
    expert_size,
    gguf_experts,
    shared_size,
)
from specinfer.model.families.hybrid.mamba_gguf import decay_logarithms, head_sizes
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.keys import Metadata, whole_number
from specinfer.model.weights.gguf_files.metadata import GgufFile
from specinfer.model.weights.source import MTP_LAYERS

_LINEAR = ".linear_attn."
_PARTS = GGUF_PARTS | {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_TENSORS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
_FURTHER = {
    "input_proj": "nextn.eh_proj",
    "token_layernorm": "nextn.enorm",
    "hidden_layernorm": "nextn.hnorm",
    "final_layernorm": "nextn.shared_head_norm",
}
_NEXT = "qwen3next"
_AFTER_KEYS = ("in_proj_qkv.weight", "conv1d.weight")
"""Tensors whose value rows come after query and key rows."""


def _config(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig, _fields(file)


def _mixture_config(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Qwen3_5MoeTextConfig

    sizes = {"moe_intermediate_size": expert_size(file), "shared_expert_intermediate_size": shared_size(file)}
    return Qwen3_5MoeTextConfig, _fields(file) | expert_counts(file, "num_experts") | sizes


def _fields(file: GgufFile) -> Fields:
    meta, turned = file.meta, file.meta.count("rope.dimension_count", file.head_dim)
    sections = list(meta.get("rope.dimension_sections", ()))
    if None in map(whole_number, sections) or (sections and 2 * sum(sections) != turned):
        raise meta.refused("rope.dimension_sections", f"must have a sum of {turned // 2}")
    if file.factors or meta.get("rope.scaling.type", "none") != "none":
        raise meta.refused("rope.scaling.type", "scaled positions are not supported")
    heads, size = head_sizes(meta)
    period = meta.count("full_attention_interval", 4)
    kinds = ("full_attention", "linear_attention")
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": meta.number("rope.freq_base"),
            "partial_rotary_factor": turned / file.head_dim,
            **({"mrope_section": sections[:3]} if sections else {}),
        },
        "layer_types": [kinds[(layer + 1) % period != 0] for layer in range(meta.layers)],
        "linear_num_key_heads": meta.count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": meta.count("ssm.state_size"),
        "linear_value_head_dim": size,
        "linear_conv_kernel_dim": meta.count("ssm.conv_kernel"),
        MTP_LAYERS: meta.count("block_count") - meta.layers,
    }


def _next_config(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig, _mixture_config(file)[1]


def joined_projections(hf: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join Qwen 3 Next's separate projections as `transformers` stores them."""
    joined, heads = dict(tensors), hf.linear_num_key_heads
    keys = heads * hf.linear_key_head_dim
    for name in [name for name in tensors if ".in_proj_qkv." in name]:
        mixed, gates = joined.pop(name), joined.pop(name.replace("_qkv.", "_z."))
        kinds = [*torch.split(mixed, [keys, keys, len(gates)]), gates]
        by_head = torch.cat([kind.reshape(heads, -1, kind.shape[1]) for kind in kinds], 1)
        joined[name.replace("_qkv.", "_qkvz.")] = by_head.flatten(0, 1)
    return joined


def _undo(meta: Metadata, name: str, tensor: torch.Tensor, block: int) -> torch.Tensor | None:
    _, _, part = name.rpartition(_LINEAR)
    if _LINEAR not in name:
        return tensor - 1 if block == 1 and name.endswith("norm.weight") else tensor
    if part == "norm.weight":
        return tensor
    keys, values = meta.count("ssm.group_count"), meta.count("ssm.time_step_rank")
    before = 2 * keys * meta.count("ssm.state_size") if part in _AFTER_KEYS else 0
    if meta.architecture == _NEXT:
        keys = values  # Qwen 3 Next's value heads are in order
    if part == "out_proj.weight":
        # columns can only be reordered by whole blocks
        whole = values == keys or (meta.count("ssm.inner_size") // values) % block == 0
        return _grouped(tensor.T, keys, values).T.contiguous() if whole else None
    tensor = torch.cat([tensor[:before], _grouped(tensor[before:], keys, values)])
    if part == "conv1d.weight":
        return tensor[:, None]
    return decay_logarithms(name, tensor) if part == "A_log" else tensor


def _grouped(rows: torch.Tensor, keys: int, values: int) -> torch.Tensor:
    """Return rows of value heads grouped by key head, for `transformers`."""
    if values == keys:
        return rows
    tiles = rows.reshape(values // keys, keys, len(rows) // values, *rows.shape[1:])
    return tiles.transpose(0, 1).reshape(rows.shape)


LAYOUT = GgufLayout(_PARTS, _config, tensors=_TENSORS, undo_converter=_undo, mtp_parts=_FURTHER)
_MIXED = _PARTS | gguf_experts() | GGUF_SHARED
MIXTURE = GgufLayout(_MIXED, _mixture_config, tensors=_TENSORS, undo_converter=_undo, mtp_parts=_FURTHER)
NEXT = GgufLayout(
    _MIXED | {"linear_attn.in_proj_ba": "ssm_ba"},
    _next_config,
    tensors=_TENSORS,
    undo_converter=_undo,
    mtp_parts=_FURTHER,
)
