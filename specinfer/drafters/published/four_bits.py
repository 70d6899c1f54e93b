"""Stores a draft's matrices in 4 bits, as `compressed-tensors` does ("pack-quantized").

    NAME_packed     int32 [rows, columns * bits / 32], unsigned numbers, the first in the lowest bits
    NAME_scale      float16 [rows, columns / 32]
    NAME_shape      rows, columns

The numbers are those of Q4_0, so that the compiled kernels multiply what is stored; `fc` has those of Q8_0, and is
multiplied in the model's type.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specinfer.model.formats.base import SMALL_BLOCKS, BlockFormat
from specinfer.model.formats.registry import FORMATS
from specinfer.model.weights.packed.dequantised import packed

_BLOCK, _SCALE_BYTES = 32, 2
_STATES = "fc.weight"
"""Matrix with 8 bits, as hidden states have a few very large numbers."""


def in_four_bits(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with matrices packed in 4 bits, `fc` in 8; others are unchanged."""
    result = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and not tensor.shape[1] % _BLOCK:
            parts = _packed(tensor, 8 if name == _STATES else 4)
            result |= {f"{name}_{part}": of_part for part, of_part in parts.items()}
        else:
            result[name] = tensor
    return result


def _packed(matrix: torch.Tensor, bits: int) -> dict[str, torch.Tensor]:
    kind = FORMATS[SMALL_BLOCKS if bits == 4 else "q8_0"]
    assert isinstance(kind, BlockFormat)
    blocks = kind.quantise(matrix.float().numpy()).reshape(len(matrix), -1, kind.block_bytes)
    scale, stored = blocks[..., :_SCALE_BYTES].copy().view(np.float16)[..., 0], blocks[..., _SCALE_BYTES:]
    if bits == 4:  # a byte has a number of the first half and one of the second
        values = np.concatenate([stored & 15, stored >> 4], -1).astype(np.int8) - 8
    else:
        values = stored.copy().view(np.int8)
    return packed(torch.from_numpy(values.reshape(len(matrix), -1)), torch.from_numpy(scale), bits)


def _group(targets: Sequence[str], bits: int) -> dict[str, Any]:
    weights = {"type": "int", "num_bits": bits, "symmetric": True, "strategy": "group", "group_size": _BLOCK}
    return {"targets": [*targets], "weights": weights}


FOUR_BITS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": _group(["re:layers.*_proj", "lm_head"], 4), "group_1": _group(["fc"], 8)},
}
"""`quantization_config` of a checkpoint in 4 bits."""
