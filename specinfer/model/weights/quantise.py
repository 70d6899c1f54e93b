"""A model's matrices quantised while loading: int8 and int4 for the weights alone, w8a8 for activations too.

int8 and int4 are the blocks of GGUF: groups of 32 weights along a row share a scale (Q8_0) or a scale and a
minimum (Q4_1), and are multiplied as such, with activations in 16 bits. In w8a8 every row of a matrix has one
scale, activations are put into eight bits row by row, and bytes are multiplied with bytes. Embeddings for
looking up and vectors stay as they are. The quantised model is another model: good for a speculator, whose
mistakes cost only time (the paper's quantised SSM), and a decision of the operator for a target.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch

BLOCK_TYPES = {"int8": "Q8_0", "int4": "Q4_1", "w8a8": "W8A8"}
_GROUP = 32

Blocks = tuple[str, torch.Tensor]
"""(GGUF type, bytes [N, K / 32 blocks]); or ("W8A8", bytes [N, 4 + K]: a float32 scale, signed bytes)."""


@runtime_checkable
class BlockWeights(Protocol):
    """Weights that can give matrices as quantised blocks."""

    def blocks(self, name: str) -> Blocks | None:
        """Return a matrix in blocks; None if it has none."""


class QuantisedWeights(Mapping[str, torch.Tensor]):
    """Weights with quantised matrices.

    Args:
        bits: "int8", "int4" or "w8a8".
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], bits: str) -> None:
        self._weights, self._type = weights, BLOCK_TYPES[bits]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def blocks(self, name: str) -> Blocks | None:
        """Return the quantised matrix; None if its rows are no whole groups."""
        weight = self._weights[name].float()
        if weight.dim() != 2 or weight.shape[1] % _GROUP:
            return None
        if self._type == "W8A8":
            return self._type, _bytes(weight)
        import gguf

        kind = gguf.GGMLQuantizationType[self._type]
        return self._type, torch.from_numpy(gguf.quantize(weight.numpy(), kind))


def _bytes(weight: torch.Tensor) -> torch.Tensor:
    """Return a matrix [N, K] as bytes [N, 4 + K]: the scale of every row, its weights over that.

    The magnitudes of two neighbours add up to 128 at most, so that their products with two activations fit
    into the 16 bits in which AVX2 adds them. Large weights are rarely neighbours: a quarter of the range is
    what that costs.
    """
    pairs = weight[:, ::2].abs() + weight[:, 1::2].abs()
    scale = pairs.amax(1, keepdim=True).clamp(min=1e-20) / 127  # rounding adds a half to each
    rounded = (weight / scale).round().to(torch.int8)
    return torch.cat([scale.view(torch.uint8), rounded.view(torch.uint8)], 1)
