"""Qwen 3.5 and Qwen 3 Next, dense and with experts.

Three of four layers are gated delta nets; attention has output gates, and norms multiply by 1 + w.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import (
    Family,
    Fields,
    HeadSizes,
    RecurrentShape,
    TensorSource,
    llama_fields,
    replaced,
)
from specinfer.model.families.experts import qwen_experts, rename_experts
from specinfer.model.families.hybrid.qwen_gguf import LAYOUT, MIXTURE, NEXT, joined_projections
from specinfer.model.families.positions import FULL, LINEAR, rotary
from specinfer.model.lazy_torch import torch

_NAMES = {"model.language_model.": "model."}
_OTHER_PARTS = ("model.visual.", "mtp.")
"""Name prefixes of tensors that are not read here: images, multi-token prediction."""
_OUTPUT_NORM = ".linear_attn.norm."


def _fields(hf: Any) -> Fields:
    if hf.attention_bias:
        raise IncompatibleError("attention_bias = True: must be False")
    if unknown := [kind for kind in hf.layer_types if kind not in (FULL, LINEAR)]:
        raise IncompatibleError(f"layer_types: {unknown[0]!r}: supported are {FULL}, {LINEAR}")
    inv_freq, scale = rotary(hf, partial=True)
    own = {
        "qk_norm": True,
        "output_gate": True,
        "experts": qwen_experts(hf),
        "recurrent_layers": tuple(kind == LINEAR for kind in hf.layer_types),
        "recurrent_shape": RecurrentShape(
            kind="delta_net",
            key_heads=hf.linear_num_key_heads,
            value_heads=hf.linear_num_value_heads,
            key_dim=hf.linear_key_head_dim,
            value_dim=hf.linear_value_head_dim,
            convolved=hf.linear_conv_kernel_dim,
        ),
    }
    return llama_fields(hf, {"inv_freq": inv_freq, "rotary_scale": scale}) | own


def _raised(weight: torch.Tensor) -> torch.Tensor:
    return weight.float() + 1


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    if name.startswith(_OTHER_PARTS):
        return {}
    ours = replaced(name, _NAMES)
    if name.endswith("norm.weight") and _OUTPUT_NORM not in name:
        return {ours: TensorSource(name, _raised)}
    return {new: source._replace(name=name) for new, source in rename_experts(heads, ours).items()}


def _next_rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    """Return our tensors that come from a tensor of Qwen 3 Next.

    Its projections are joined in one matrix, whose rows are grouped by key head.
    """
    net = heads.recurrent
    assert net is not None, "a model with delta nets has their shape"
    of_key = net.value_heads // net.key_heads
    convolved = [net.key_dim, net.key_dim, of_key * net.value_dim]
    fused = {
        "in_proj_qkvz": ("in_proj_qkv", "in_proj_z", [*convolved, of_key * net.value_dim]),
        "in_proj_ba": ("in_proj_b", "in_proj_a", [of_key, of_key]),
    }
    for old, (first, last, sizes) in fused.items():
        if f".{old}." in name:
            return {
                name.replace(old, new): TensorSource(name, partial(_pick, net.key_heads, sizes, wanted))
                for new, wanted in ((first, slice(-1)), (last, slice(-1, None)))
            }
    return _rename(heads, name)


def _pick(heads: int, sizes: list[int], wanted: slice, matrix: torch.Tensor) -> torch.Tensor:
    """Return the wanted kinds of rows from a matrix grouped by head.

    Args:
        sizes: number of rows of each kind, per head.
        wanted: range of kinds; the result has kind after kind.
    """
    kinds = torch.split(matrix.reshape(heads, sum(sizes), *matrix.shape[1:]), sizes, 1)[wanted]
    return torch.cat([kind.flatten(0, 1) for kind in kinds])


_NET = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
_COUNTS = (*(f"linear_{name}" for name in _NET), "intermediate_size", "moe_intermediate_size")
QWEN_3_5 = Family(
    model_types=("qwen3_5_text", "qwen3_5_moe_text"),
    fields=_fields,
    rename=_rename,
    gguf={"qwen35": LAYOUT, "qwen35moe": MIXTURE},
    counts=_COUNTS,
)
QWEN_3_NEXT = Family(
    model_types=("qwen3_next",),
    fields=_fields,
    rename=_next_rename,
    gguf={"qwen3next": NEXT},
    to_transformers=joined_projections,
    counts=(*_COUNTS, "decoder_sparse_step"),
)
