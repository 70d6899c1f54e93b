"""Interfaces of weights: tensors by name, and matrices in formats of GGUF."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

Blocks = tuple[str, torch.Tensor]
"""GGUF type and rows as bytes [N, bytes of K weights].

The type may be one of numbers, not blocks.
"""


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
        """Return a matrix in its format; None if it has none.

        With `as_stored`, return it in the format of its file.
        """


@runtime_checkable
class StackedBlocks(Protocol):
    """Weights with tensors of several matrices in a format of GGUF."""

    def stacked(self, name: str, index: int) -> Blocks | None:
        """Return one of a tensor's matrices in its format; None without one."""
