"""Interface of weights that have matrices in blocks."""

from typing import Protocol, runtime_checkable

import torch

Blocks = tuple[str, torch.Tensor]
"""GGUF type, and rows as bytes [N, bytes of K weights]."""


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can give matrices as quantised blocks."""

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in blocks, with `as_stored` only those of its file; None if it has none."""
