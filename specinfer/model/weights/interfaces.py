"""Interfaces of weights: tensors by name, and matrices in GGUF formats."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

Blocks = tuple[str, torch.Tensor]
"""GGUF type, and rows as bytes [N, bytes of K weights].

The type may also be F32, F16 or BF16.
"""


class NamedTensors(Mapping[str, torch.Tensor]):
    """Tensors whose names are known without reading them."""

    _names: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # Mapping's default would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can return matrices in GGUF formats."""

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in its format; None for other tensors.

        With `as_stored`, return only the format of its file.
        """


@runtime_checkable
class StackedBlocks(Protocol):
    """Weights with stacked matrices in GGUF formats."""

    def stacked(self, name: str, index: int) -> Blocks | None:
        """Return one of a tensor's stacked matrices; None for other tensors."""
