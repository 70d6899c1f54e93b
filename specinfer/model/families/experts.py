"""Describe mixtures of experts, and name their tensors.

Our decoder reads, in a layer with experts,

    mlp.router.weight                   [experts, hidden]
    mlp.experts.N.gate_proj.weight      and up_proj, down_proj, of expert N
    mlp.gate_proj.weight                and up_proj, down_proj, of the shared expert
    mlp.shared_gate.weight              [1, hidden], its weight
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.families.base import Fields, HeadSizes, TensorSource
from specinfer.model.weights.gguf_files.metadata import GgufFile

ROUTER = "mlp.router.weight"
SHARED_GATE = "mlp.shared_gate.weight"


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts of a model's layers."""

    count: int
    used: int
    """Number of experts of a row."""
    intermediate_size: int
    """Size of one."""
    renormalised: bool
    """True if a row's weights are the softmax of its experts' scores, not of all scores."""
    shared_size: int = 0
    """Size of the shared expert, which all rows have; 0: there is none."""
    dense_layers: frozenset[int] = frozenset()
    """Layers with an MLP of `ModelConfig.intermediate_size` instead."""

    def __post_init__(self) -> None:
        if not 0 < self.used <= self.count:
            raise IncompatibleError(
                f"num_experts_per_tok = {self.used}: must be 1 to {self.count}, the number of experts"
            )


_PART = re.compile(r"(model\.layers\.\d+\.)(?:mlp|block_sparse_moe)\.(.+)")
_EXPERT = re.compile(r"experts\.(\d+)\.(\w+)\.weight")
_PROJECTIONS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Mixtral's names of an expert's matrices."""
_WHOLE = {
    **dict.fromkeys(("gate.weight", "router.weight", "router.layer.weight"), ROUTER),
    **{f"shared_expert.{name}_proj.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
}
"""Tensors that are in a checkpoint as we read them, with our names."""


def _first_half(rows: torch.Tensor) -> torch.Tensor:
    return rows[: len(rows) // 2]


def _second_half(rows: torch.Tensor) -> torch.Tensor:
    return rows[len(rows) // 2 :]


def _one_row(vector: torch.Tensor) -> torch.Tensor:
    return vector.reshape(1, -1)


Pick = Callable[[torch.Tensor], torch.Tensor] | None
_FUSED: dict[str, Pick] = {"gate_proj": _first_half, "up_proj": _second_half}
_STACKS: dict[str, dict[str, Pick]] = {
    "experts.gate_up_proj": _FUSED,
    "input_linear.weight": _FUSED,
    **{f"experts.{name}_proj.weight": {f"{name}_proj": None} for name in ("gate", "up", "down")},
    **{name: {"down_proj": None} for name in ("experts.down_proj", "output_linear.weight")},
}
"""Tensors with a matrix for each expert, and the parts of such a matrix."""


def rename_experts(sizes: HeadSizes, name: str) -> dict[str, TensorSource]:
    """Return what a tensor of a mixture is for us, however the checkpoint stores the experts."""
    found = _PART.fullmatch(name)
    if found is None:
        return {name: TensorSource(name)}
    layer, part = found[1], found[2]
    if part in _WHOLE:
        return {f"{layer}{_WHOLE[part]}": TensorSource(name)}
    if part == "shared_expert_gate.weight":
        return {f"{layer}{SHARED_GATE}": TensorSource(name, _one_row)}
    if one := _EXPERT.fullmatch(part):
        projection = _PROJECTIONS.get(one[2], one[2])
        return {f"{layer}mlp.experts.{one[1]}.{projection}.weight": TensorSource(name)}
    if part not in _STACKS:
        return {f"{layer}mlp.{part}": TensorSource(name)}
    return {
        f"{layer}mlp.experts.{expert}.{projection}.weight": TensorSource(name, pick, expert)
        for expert in range(sizes.experts)
        for projection, pick in _STACKS[part].items()
    }


def gguf_experts(prefix: str = "mlp", router: str = "gate") -> dict[str, str]:
    """Return the parts of a mixture in GGUF files, by the names of `transformers`."""
    projections = {f"{prefix}.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")}
    return projections | {f"{prefix}.{router}": "ffn_gate_inp"}


GGUF_SHARED = {
    **{f"mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""Parts of a shared expert in GGUF files."""


def expert_counts(file: GgufFile, count: str) -> Fields:
    """Return the numbers of experts of a file; `count` is how `transformers` calls that of all."""
    used = file.meta.count("expert_used_count")
    return {count: file.meta.count("expert_count"), "num_experts_per_tok": used}


def expert_size(file: GgufFile) -> int:
    """Return the size of an expert, which old files state by its matrices only."""
    stored = file.shapes.get("blk.0.ffn_gate_exps.weight", (0, 0, 0))[1]
    return file.meta.count("expert_feed_forward_length", stored or None)


def merged_experts(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return a GGUF file's tensors with experts as models of `transformers` have them."""
    merged = dict(tensors)
    for name in [name for name in tensors if name.endswith(".experts.gate_proj.weight")]:
        stem = name.removesuffix("gate_proj.weight")
        gate, up, down = (merged.pop(f"{stem}{part}_proj.weight") for part in ("gate", "up", "down"))
        merged[f"{stem}gate_up_proj"], merged[f"{stem}down_proj"] = torch.cat([gate, up], 1), down
    for name in [name for name in merged if name.endswith(".shared_expert_gate.weight")]:
        merged[name] = _one_row(merged[name])
    return merged
