"""Weight-only int8 and int4: a model's matrices in the blocks of GGUF, quantised while loading.

Groups of 32 weights along a row share a scale (int8, GGUF's Q8_0) or a scale and a minimum (int4, Q4_1).
Embeddings for looking up and vectors stay as they are. The quantised model is another model: good for a
speculator, whose mistakes cost only time (the paper's quantised SSM), and a decision of the operator for a
target.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch

BLOCK_TYPES = {"int8": "Q8_0", "int4": "Q4_1"}
_GROUP = 32

Blocks = tuple[str, torch.Tensor]
"""(GGUF type, bytes [N, K / 32 blocks])."""


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can give matrices as quantised blocks."""

    def blocks(self, name: str) -> Blocks | None:
        """A matrix in blocks; None if it has none."""


class QuantisedWeights(Mapping[str, torch.Tensor]):
    """Weights with quantised matrices.

    Args:
        bits: "int8" or "int4".
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], bits: str) -> None:
        self._weights, self._type = weights, BLOCK_TYPES[bits]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def blocks(self, name: str) -> Blocks | None:
        """The matrix, quantised; None if its rows are no whole groups."""
        import gguf

        weight = self._weights[name].float()
        if weight.dim() != 2 or weight.shape[1] % _GROUP:
            return None
        kind = gguf.GGMLQuantizationType[self._type]
        return self._type, torch.from_numpy(gguf.quantize(weight.numpy(), kind))
