"""Interfaces of weights: tensors by name, and matrices in GGUF blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from specinfer.model.lazy_torch import torch

Weights: TypeAlias = Mapping[str, "torch.Tensor"]
Blocks: TypeAlias = tuple[str, "torch.Tensor"]
"""GGUF type, and rows as bytes [N, bytes of a row].

The type may also be F32, F16 or BF16.
"""


class NamedTensors(Mapping[str, "torch.Tensor"]):
    """Tensors by name; asking for names does not read tensors."""

    _names: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's default would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can return matrices in GGUF blocks."""

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in blocks; None for other tensors.

        `as_stored`: do not quantise; return only blocks that the file contains.
        """


@runtime_checkable
class StackedBlocks(Protocol):
    """Weights that can return single matrices of stacked tensors in blocks."""

    def stacked(self, name: str, index: int) -> Blocks | None:
        """Return matrix `index` of a stack in blocks; None for other tensors."""
