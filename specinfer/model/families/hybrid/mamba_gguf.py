"""Undoes the changes that llama.cpp's converter makes to state spaces.

The models are Mamba 2, Granite 4 and Falcon H1. The converter stores decays A in place of log(-A), decays and skips
as columns, norms with a row per group, and convolutions as matrices. It multiplies weights by Falcon's factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import GGUF_PARTS, Fields, GgufLayout
from specinfer.model.families.experts import expert_counts, gguf_experts
from specinfer.model.families.granite import granite_factors
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.keys import Metadata
from specinfer.model.weights.gguf_files.metadata import GgufFile

_FILE_PARTS = {name: f"ssm_{short}" for name, short in (("in_proj", "in"), ("out_proj", "out"))}
_FILE_PARTS |= {name: f"ssm_{name}" for name in ("conv1d", "norm")}
_FILE_TENSORS = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
_FLAT = (".mamba.norm.weight", ".mixer.norm.weight", ".D")
"""Endings of names of vectors that files store in matrices."""
_SIZES = ("n_heads", "d_head", "n_groups", "d_state", "d_conv")
_SHARED = {
    "shared_mlp.gate_proj": "ffn_gate_shexp",
    "shared_mlp.up_proj": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
}
_FALCON_PARTS = {name.replace("mlp.", "feed_forward."): short for name, short in GGUF_PARTS.items()}
del _FALCON_PARTS["post_attention_layernorm"]


def head_sizes(meta: Metadata) -> tuple[int, int]:
    """Return the number of a file's recurrent heads, and their size."""
    heads, inner = meta.count("ssm.time_step_rank"), meta.count("ssm.inner_size")
    if inner % heads:
        raise meta.refused("ssm.inner_size", f"must be a multiple of {heads} heads")
    return heads, inner // heads


def _sizes(meta: Metadata) -> list[int]:
    """Return the sizes of state spaces, in the order of `_SIZES`."""
    counts = (meta.count(f"ssm.{name}") for name in ("group_count", "state_size", "conv_kernel"))
    return [*head_sizes(meta), *counts]


def _expansion(meta: Metadata) -> int:
    inner, hidden = meta.count("ssm.inner_size"), meta.count("embedding_length")
    if inner % hidden:
        raise meta.refused("ssm.inner_size", f"must be a multiple of embedding_length = {hidden}")
    return inner // hidden


def _hybrid_fields(file: GgufFile) -> Fields:
    sizes = dict(zip((f"mamba_{name}" for name in _SIZES), _sizes(file.meta), strict=True))
    return sizes | {"mamba_conv_bias": _has(file, "ssm_conv1d.bias")}


def _has(file: GgufFile, part: str) -> bool:
    return any(name.endswith(f".{part}") for name in file.shapes)


def _granite(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import GraniteMoeHybridConfig

    meta = file.meta
    heads = meta.layer_values("attention.head_count_kv")
    inner = meta.count("feed_forward_length")
    used = meta.optional_count("expert_used_count")
    experts = {"num_local_experts": 0, "num_experts_per_tok": used}
    if meta.get("expert_count", 0):
        experts = expert_counts(file, "num_local_experts")
    return GraniteMoeHybridConfig, {
        **granite_factors(file),
        **experts,
        **_hybrid_fields(file),
        "mamba_expand": _expansion(meta),
        "shared_intermediate_size": meta.count("expert_shared_feed_forward_length", inner),
        "layer_types": ["full_attention" if count else "linear_attention" for count in heads],
        "position_embedding_type": "rope" if meta.get("rope.scaling.finetuned", True) else None,
    }


def _falcon(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import FalconH1Config

    return FalconH1Config, _hybrid_fields(file) | {
        "rope_parameters": file.rope(),
        "attention_bias": file.has_bias,
        "mamba_d_ssm": file.meta.count("ssm.inner_size"),
        "mamba_rms_norm": _has(file, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def _mamba(file: GgufFile) -> tuple[Any, Fields]:
    from transformers import Mamba2Config

    meta = file.meta
    for name in ("attention.head_count", "feed_forward_length"):
        if meta.get(name, 0) != 0:
            raise IncompatibleError(f"GGUF: {meta.architecture}.{name} = {meta.get(name)!r}: must be 0")
    meta.count("context_length", 1)  # a state space has no positions
    names = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    return Mamba2Config, {
        **dict(zip(names, _sizes(meta), strict=True)),
        "expand": _expansion(meta),
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
        "layer_norm_epsilon": meta.number("attention.layer_norm_rms_epsilon"),
    }


def _undo(meta: Metadata, name: str, tensor: torch.Tensor, block: int) -> torch.Tensor | None:
    if name.endswith(".conv1d.weight"):
        return tensor[:, None]
    if name.endswith(_FLAT):
        return tensor.flatten()
    return decay_logarithms(name, tensor.flatten()) if name.endswith(".A_log") else tensor


def decay_logarithms(name: str, decays: torch.Tensor) -> torch.Tensor:
    """Return log(-a) of decays a, the content of `ssm_a`."""
    if not decays.is_meta and len(wrong := decays[~(decays < 0)]):
        raise IncompatibleError(f"GGUF: {name} (ssm_a) has the decay {wrong[0].item():g}: must be below 0")
    return torch.log(-decays)


def joined_shared(hf: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join gate and up of Granite's shared MLP into one matrix."""
    joined = dict(tensors)
    for name in [name for name in tensors if name.endswith("mlp.gate_proj.weight")]:
        stem = name.removesuffix("gate_proj.weight")
        shared = f"{stem.removesuffix('shared_mlp.').removesuffix('mlp.')}shared_mlp."
        gate, up = joined.pop(name), joined.pop(f"{stem}up_proj.weight")
        joined[f"{shared}input_linear.weight"] = torch.cat([gate, up])
        if f"{stem}down_proj.weight" in joined:
            joined[f"{shared}output_linear.weight"] = joined.pop(f"{stem}down_proj.weight")
    return joined


def _module(module: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return GGUF names of a state space's modules and other tensors."""
    parts, tensors = (
        {f"{module}.{name}": short for name, short in names.items()} for names in (_FILE_PARTS, _FILE_TENSORS)
    )
    return parts, tensors


_PARTS, _TENSORS = _module("mamba")
_MIXER_PARTS, _MIXER_TENSORS = _module("mixer")
_layout = partial(GgufLayout, undo_converter=_undo)
GRANITE_LAYOUT = _layout(
    GGUF_PARTS | gguf_experts("block_sparse_moe", "router") | _SHARED | _PARTS,
    _granite,
    interleaved_rope=True,
    tensors=_TENSORS,
)
FALCON_LAYOUT = _layout(
    _FALCON_PARTS | _PARTS,
    _falcon,
    tensors=_TENSORS | {"pre_ff_layernorm.weight": "ffn_norm"},
    top={"model.final_layernorm.weight": "output_norm.weight"},
)
MAMBA_LAYOUT = _layout(
    {"norm": "attn_norm"} | _MIXER_PARTS,
    _mamba,
    tensors=_MIXER_TENSORS,
    top={
        "backbone.embeddings.weight": "token_embd.weight",
        "backbone.norm_f.weight": "output_norm.weight",
    },
    layers="backbone.layers",
    attends=False,
)
