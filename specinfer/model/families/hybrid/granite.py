"""Granite 4 without experts: mostly Mamba 2 layers, a few attention layers."""

from functools import partial
from typing import Any

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import (
    Family,
    Fields,
    HeadSizes,
    RecurrentShape,
    TensorSource,
    llama_fields,
    nth_part,
    replaced,
)
from specinfer.model.families.granite import factor_fields
from specinfer.model.families.positions import NO_ROTARY

_NAMES = {
    ".shared_mlp.output_linear.": ".mlp.down_proj.",
    ".mamba.": ".linear_attn.",
}
_GATE_UP = ".shared_mlp.input_linear."
_PROJECTION = ".mamba.in_proj."
_CONVOLUTION = ".mamba.conv1d."
_ATTENTION = ("attention", "full_attention")
_WITHOUT_LIMITS = (0.0, float("inf"))


def _fields(hf: Any) -> Fields:
    checks = {"num_local_experts": 0, "mamba_proj_bias": False, "attention_bias": False}
    for name, known in checks.items():
        if (value := getattr(hf, name)) not in (known, None):
            raise IncompatibleError(f"{name} = {value!r}: not supported")
    if tuple(hf.time_step_limit) != _WITHOUT_LIMITS:
        raise IncompatibleError(f"time_step_limit = {hf.time_step_limit!r}: not supported")
    recurrent = tuple(kind not in _ATTENTION for kind in hf.layer_types)
    positions = (
        {} if hf.position_embedding_type == "rope" else {"layer_rotary": (NO_ROTARY,) * len(recurrent)}
    )
    own = {
        "intermediate_size": hf.shared_intermediate_size,
        "recurrent_layers": recurrent,
        "recurrent_shape": RecurrentShape(
            kind="state_space",
            key_heads=hf.mamba_n_groups,
            value_heads=hf.mamba_n_heads,
            key_dim=hf.mamba_d_state,
            value_dim=hf.mamba_d_head,
            convolved=hf.mamba_d_conv,
        ),
    }
    return llama_fields(hf) | factor_fields(hf) | positions | own


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    shape = heads.recurrent
    assert shape is not None, "its configuration has it"
    if _GATE_UP in name:
        return {
            name.replace(_GATE_UP, f".mlp.{part}_proj."): TensorSource(name, nth_part(which, 2))
            for which, part in enumerate(("gate", "up"))
        }
    if _CONVOLUTION in name:
        return {replaced(name, _NAMES): TensorSource(name, partial(_queries_first, shape.values))}
    if _PROJECTION in name:
        sizes = (shape.values, shape.channels, shape.value_heads)
        new = name.replace(_PROJECTION, ".linear_attn.in_proj_{}.")
        return {
            new.format("z"): TensorSource(name, partial(_part, sizes, 0)),
            new.format("qkv"): TensorSource(
                name, lambda rows: _queries_first(sizes[0], _part(sizes, 1, rows))
            ),
            new.format("a"): TensorSource(name, partial(_part, sizes, 2)),
        }
    return {replaced(name, _NAMES): TensorSource(name)}


def _part(sizes: tuple[int, int, int], which: int, rows: torch.Tensor) -> torch.Tensor:
    return torch.split(rows, list(sizes))[which]


def _queries_first(values: int, rows: torch.Tensor) -> torch.Tensor:
    """Reorder rows from x, B, C to C, B, x.

    C, B and x are our queries, keys and values.
    """
    x, keys = rows[:values], (len(rows) - values) // 2
    return torch.cat([rows[values + keys :], rows[values : values + keys], x])


GRANITE_HYBRID = Family(model_types=("granitemoehybrid",), fields=_fields, rename=_rename)
