"""Mamba 2 (arXiv 2405.21060), and names shared by families with such layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import Family, Fields, HeadSizes, RecurrentShape, TensorSource, replaced
from specinfer.model.families.hybrid.mamba_gguf import MAMBA_LAYOUT
from specinfer.model.families.positions import NO_ROTARY, UNBOUNDED
from specinfer.model.lazy_torch import torch

MAMBA_COUNTS = tuple(
    f"mamba_{name}" for name in ("n_groups", "n_heads", "d_state", "d_head", "d_conv", "expand")
)
"""Fields with sizes of state spaces, in hybrid models."""
_WITHOUT_LIMITS = (0.0, float("inf"))
_NAMES = {
    ".norm.": ".input_layernorm.",
    "model.norm_f.": "model.norm.",
    "model.embeddings.": "model.embed_tokens.",
    "model.embedding.": "model.embed_tokens.",
}


def check_state_space(hf: Any, known: Mapping[str, Any]) -> None:
    """Refuse options that would change the layer's arithmetic.

    Args:
        known: supported value of each option.
    """
    for name, value in {"hidden_act": "silu", **known}.items():
        if (found := getattr(hf, name)) not in (value, None):
            raise IncompatibleError(f"{name} = {found!r}: must be {value!r}")
    if hf.time_step_limit is None or tuple(hf.time_step_limit) != _WITHOUT_LIMITS:
        raise IncompatibleError(f"time_step_limit = {hf.time_step_limit!r}: must be {[*_WITHOUT_LIMITS]}")


def mamba_shape(hf: Any, factors: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> RecurrentShape:
    return RecurrentShape(
        kind="state_space",
        key_heads=hf.mamba_n_groups,
        value_heads=hf.mamba_n_heads,
        key_dim=hf.mamba_d_state,
        value_dim=hf.mamba_d_head,
        convolved=hf.mamba_d_conv,
        factors=factors,
    )


def rename_state_space(heads: HeadSizes, name: str, module: str) -> dict[str, TensorSource]:
    """Return our tensors that come from tensor `name` of a state space.

    `module` is the state space's name in a layer.
    """
    shape = heads.recurrent
    assert shape is not None, "a model with state spaces has their shape"
    stem, _, part = name.partition(f".{module}.")
    ours = f"{stem}.linear_attn."
    if part.startswith("conv1d."):
        return {f"{ours}{part}": TensorSource(name, partial(_queries_first, shape.values))}
    if part != "in_proj.weight":
        return {f"{ours}{part}": TensorSource(name)}
    sizes = (shape.values, shape.channels, shape.value_heads)
    return {
        f"{ours}in_proj_z.weight": TensorSource(name, partial(_part, sizes, 0)),
        f"{ours}in_proj_qkv.weight": TensorSource(
            name, lambda rows: _queries_first(sizes[0], _part(sizes, 1, rows))
        ),
        f"{ours}in_proj_a.weight": TensorSource(name, partial(_part, sizes, 2)),
    }


def _part(sizes: tuple[int, int, int], which: int, rows: torch.Tensor) -> torch.Tensor:
    return torch.split(rows, list(sizes))[which]


def _queries_first(values: int, rows: torch.Tensor) -> torch.Tensor:
    """Reorder a state space's rows (x, B, C) to (C, B, x).

    They take the places of queries, keys and values.
    """
    x, keys = rows[:values], (len(rows) - values) // 2
    return torch.cat([rows[values + keys :], rows[values : values + keys], x])


def _fields(hf: Any) -> Fields:
    check_state_space(hf, {"use_bias": False})
    layers = hf.num_hidden_layers
    return {
        "intermediate_size": 0,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 16,
        "max_positions": UNBOUNDED,
        "layer_rotary": (NO_ROTARY,) * layers,
        "norm_eps": hf.layer_norm_epsilon,
        "activation": "silu",
        "recurrent_layers": (True,) * layers,
        "recurrent_shape": RecurrentShape(
            "state_space", hf.n_groups, hf.num_heads, hf.state_size, hf.head_dim, hf.conv_kernel
        ),
    }


def _rename(heads: HeadSizes, name: str) -> dict[str, TensorSource]:
    ours = name.replace("backbone.", "model.", 1)
    if ".mixer." in name:
        return {
            new.replace("backbone.", "model.", 1): source
            for new, source in rename_state_space(heads, name, "mixer").items()
        }
    return {replaced(ours, _NAMES): TensorSource(name)}


MAMBA_2 = Family(
    model_types=("mamba2",),
    fields=_fields,
    rename=_rename,
    gguf={"mamba2": MAMBA_LAYOUT},
    counts=("num_heads", "n_groups", "state_size", "conv_kernel", "expand"),
)
