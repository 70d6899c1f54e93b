"""Interfaces of weights: tensors by name, and matrices in formats of GGUF."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

Blocks = tuple[str, torch.Tensor]
"""GGUF type, and rows in bytes, [N, bytes of K weights]."""


class NamedTensors(Mapping[str, torch.Tensor]):
    """Tensors whose names are known before any is read."""

    _names: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # the default reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can return matrices in a format of GGUF."""

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in its format, or its file's, if any."""


@runtime_checkable
class StackedBlocks(Protocol):
    """Weights with tensors of several matrices in a format of GGUF."""

    def stacked(self, name: str, index: int) -> Blocks | None:
        """Return a matrix of a stacked tensor in its format, if any."""
