"""Describes mixtures of experts, and names their tensors.

Our decoder reads these tensors of a layer with experts:

    mlp.router.weight                   [experts, hidden]
    mlp.experts.N.gate_proj.weight      expert N; also up_proj, down_proj
    mlp.gate_proj.weight                shared expert; also up_proj, down_proj
    mlp.shared_gate.weight              [1, hidden] gate of the shared expert
    self_attn.sinks                     [heads] attention sinks, in any layer of some families
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import Fields, HeadSizes, TensorSource, nth_part
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.gguf_files.metadata import GgufFile

ROUTER, ROUTER_BIAS = "mlp.router.weight", "mlp.router.bias"
SHARED_GATE = "mlp.shared_gate.weight"
SINKS = "self_attn.sinks"


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts of a model's layers."""

    count: int
    used: int
    """Number of experts that compute a token (top k)."""
    intermediate_size: int
    renormalised: bool
    """True if the router's softmax covers only the chosen experts' scores."""
    shared_size: int = 0
    """MLP size of the shared expert, which computes all tokens; 0: none."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with a plain MLP (`ModelConfig.intermediate_size`) in place of experts."""
    limit: float = 0.0
    """Maximum of an expert's gate and of |up|; 0: no maximum.

    A model with a maximum (gpt-oss) computes `(up + 1) * gate * sigmoid(alpha * gate)`.
    """
    alpha: float = 1.0
    biased: bool = False
    """True if router and experts have biases."""
    gated_shared: bool = False
    """True if a gate weights the shared expert."""

    def __post_init__(self) -> None:
        if type(self.count) is not int:
            raise IncompatibleError(
                f"num_experts or num_local_experts = {self.count!r}: must be a whole number"
            )
        if type(self.used) is not int or not 0 < self.used <= self.count:
            raise IncompatibleError(
                f"num_experts_per_tok = {self.used!r}: must be from 1 to {self.count}, the number of experts"
            )


def qwen_experts(hf: Any) -> Experts | None:
    """Return the mixture of a Qwen configuration; None for dense models.

    Missing settings have the defaults of `transformers`.
    """
    layers = range(hf.num_hidden_layers)
    only, step = getattr(hf, "mlp_only_layers", ()), getattr(hf, "decoder_sparse_step", 1)
    if type(step) is not int or step <= 0:
        raise IncompatibleError(f"decoder_sparse_step = {step!r}: must be a whole number above 0")
    dense = {n for n in layers if n in only or (n + 1) % step}
    if len(dense) == len(layers) or not getattr(hf, "num_experts", 0):
        return None
    chosen = (hf.num_experts, hf.num_experts_per_tok, hf.moe_intermediate_size)
    shared = getattr(hf, "shared_expert_intermediate_size", 0)
    renormalised = bool(getattr(hf, "norm_topk_prob", True))
    return Experts(*chosen, renormalised, shared, frozenset(dense), gated_shared=bool(shared))


_PART = re.compile(r"(model\.layers\.\d+\.)(?:mlp|block_sparse_moe)\.(.+)")
_EXPERT = re.compile(r"experts\.(\d+)\.(\w+)\.weight")
_PROJECTIONS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Mixtral's names of an expert's matrices -> ours."""
_WHOLE = {
    **dict.fromkeys(("gate.weight", "router.weight", "router.layer.weight"), ROUTER),
    **{f"shared_expert.{name}_proj.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
}
"""Tensor names of a layer's MLP in checkpoints -> our names."""


def _one_row(vector: torch.Tensor) -> torch.Tensor:
    return vector.reshape(1, -1)


Pick: TypeAlias = "Callable[[torch.Tensor], torch.Tensor] | None"
Stacks = dict[str, dict[str, Pick]]
"""Stacked tensor -> our tensors of each expert, and how to get them.

A stacked tensor has one matrix or vector per expert. None: take its whole matrix.
"""
_FUSED: dict[str, Pick] = {"gate_proj.weight": nth_part(0, 2), "up_proj.weight": nth_part(1, 2)}
_STACKS: Stacks = {
    "experts.gate_up_proj": _FUSED,
    "input_linear.weight": _FUSED,
    **{name: {"down_proj.weight": None} for name in ("experts.down_proj", "output_linear.weight")},
}
_OF_GGUF: Stacks = {
    f"experts.{name}": {name: None}
    for name in (f"{part}_proj.{kind}" for part in ("gate", "up", "down") for kind in ("weight", "bias"))
}


def rename_experts(sizes: HeadSizes, name: str, stacks: Stacks = _STACKS) -> dict[str, TensorSource]:
    """Return our tensors that come from a checkpoint's tensor `name`.

    The checkpoint may store experts separately, or stacked in the tensors of `stacks`.
    """
    found = _PART.fullmatch(name)
    if found is None:
        ours = name.removesuffix(".weight") if name.endswith(f"{SINKS}.weight") else name
        return {ours: TensorSource(name)}
    layer, part = found[1], found[2]
    if part in _WHOLE:
        return {f"{layer}{_WHOLE[part]}": TensorSource(name)}
    if part == "shared_expert_gate.weight":
        return {f"{layer}{SHARED_GATE}": TensorSource(name, _one_row)}
    if one := _EXPERT.fullmatch(part):
        projection = _PROJECTIONS.get(one[2], one[2])
        return {f"{layer}mlp.experts.{one[1]}.{projection}.weight": TensorSource(name)}
    known = stacks | _OF_GGUF
    if part not in known:
        return {f"{layer}mlp.{part}": TensorSource(name)}
    return {
        f"{layer}mlp.experts.{expert}.{ours}": TensorSource(name, pick, expert)
        for expert in range(sizes.experts)
        for ours, pick in known[part].items()
    }


def gguf_experts(prefix: str = "mlp", router: str = "gate") -> dict[str, str]:
    """Return a GGUF file's module names of experts, by name in `transformers`."""
    projections = {f"{prefix}.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")}
    return projections | {f"{prefix}.{router}": "ffn_gate_inp"}


GGUF_SHARED = {
    **{f"mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""GGUF module names of a shared expert, by name in `transformers`."""


def expert_counts(file: GgufFile, count: str) -> Fields:
    """Return fields: the file's number of experts (`count`), and experts per token."""
    used, every = file.meta.count("expert_used_count"), file.meta.count("expert_count")
    if used > every:
        raise file.meta.refused("expert_used_count", f"must be at most {every}, the experts")
    return {count: every, "num_experts_per_tok": used}


def expert_size(file: GgufFile) -> int:
    """Return an expert's MLP size, from metadata or a matrix's shape."""
    stored = file.shapes.get("blk.0.ffn_gate_exps.weight", (0, 0, 0))[1]
    return file.meta.count("expert_feed_forward_length", stored or None)


def shared_size(file: GgufFile) -> int:
    """Return the shared expert's MLP size, from metadata or a matrix's shape."""
    stored = file.shapes.get("blk.0.ffn_gate_shexp.weight", (0, 0))[0]
    return file.meta.count("expert_shared_feed_forward_length", stored or None)


def merged_experts(tensors: dict[str, Any]) -> dict[str, Any]:
    """Join a file's gate and up tensors of experts for `transformers`."""
    merged = dict(tensors)
    for name in [name for name in tensors if name.endswith(".experts.gate_proj.weight")]:
        stem = name.removesuffix("gate_proj.weight")
        gate, up, down = (merged.pop(f"{stem}{part}_proj.weight") for part in ("gate", "up", "down"))
        if f"{stem}gate_proj.bias" in merged:
            biases = [merged.pop(f"{stem}{part}_proj.bias") for part in ("gate", "up")]
            merged[f"{stem}gate_up_proj_bias"] = torch.stack(biases, 2).flatten(1)
            merged[f"{stem}down_proj_bias"] = merged.pop(f"{stem}down_proj.bias")
            merged[f"{stem}gate_up_proj"] = torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2)
            merged[f"{stem}down_proj"] = down.transpose(1, 2)
        else:
            merged[f"{stem}gate_up_proj"], merged[f"{stem}down_proj"] = torch.cat([gate, up], 1), down
    for name in [name for name in merged if name.endswith(".shared_expert_gate.weight")]:
        merged[name] = _one_row(merged[name])
    for name in [name for name in merged if name.endswith(f"{SINKS}.weight")]:
        merged[name.removesuffix(".weight")] = merged.pop(name)
    return merged
