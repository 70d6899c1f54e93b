"""Interface of weights that have matrices in formats of GGUF."""

from typing import Protocol, runtime_checkable

import torch

Blocks = tuple[str, torch.Tensor]
"""GGUF type, numbers among them, and rows as bytes [N, bytes of K weights]."""


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can return matrices in a format of GGUF."""

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in its format, with `as_stored` in that of its file; None if it has none."""
