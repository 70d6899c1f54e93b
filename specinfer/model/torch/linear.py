"""Defines linear layers; all storage formats have the same interface.

`Linear(x)` maps [T, in] to [T, out]. bfloat16 weights on a CPU are reordered once into oneDNN's blocked layout, which
is read at memory speed (benchmarks/tried.md#packed-layers). `Surgery` is the interface by which ranks divide a decoder
(`specinfer.model.parallel`).
"""

from typing import Protocol

import torch
import torch.nn.functional as F


class Linear(Protocol):
    """Linear layer y = x W^T + b, for x [T, in]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return y [T, out]."""


class DenseLinear:
    """A linear layer with plain weights, for any type and device."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """A bfloat16 linear layer in oneDNN's blocked layout, for CPUs."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return the fastest linear layer for the weight's type and device."""
    packable = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and weight.numel() > 0
    if packable and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return PackedLinear(weight.contiguous(), bias)
    return DenseLinear(weight, bias)


class Surgery(Protocol):
    """Wraps the linear layers of a decoder that tensor-parallel ranks divide."""

    def embedding(self, lookup: Linear) -> Linear:
        """Wrap the lookup of token ids in this rank's embeddings."""

    def output(self, linear: Linear) -> Linear:
        """Wrap a row-parallel layer, to sum the ranks' partial outputs."""

    def head(self, linear: Linear) -> Linear:
        """Wrap the head, to gather the logits of all ranks."""
