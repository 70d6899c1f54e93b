"""Reads checkpoints with quantised matrices, which are dequantised on reading.

    gptq                 4 or 8 bits, groups along the inputs, with or without order of activations
    awq                  4 bits, groups along the inputs, layout "gemm"
    fp8, fbgemm_fp8      float8 with a scale per matrix, row, or block of 128 x 128
    compressed-tensors   the same, as "float-quantized"; 4 or 8 bits with a scale per group, as "pack-quantized"

Activations are not quantised. Any other quantisation is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specinfer.model.lazy_torch import torch
from specinfer.model.weights.files import SafetensorsWeights
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.packed.dequantised import DequantisedWeights
from specinfer.model.weights.packed.scheme import read_scheme
from specinfer.model.weights.source import kept_gguf


def open_checkpoint(directory: Path, device: str = "cpu", blocks: bool = False) -> Mapping[str, torch.Tensor]:
    """Open a model directory's tensors; quantised ones are dequantised on reading.

    `blocks`: allow to read the matrices of a GGUF file in blocks, too.
    """
    gguf = kept_gguf(directory)
    if gguf is not None:
        return GgufWeights(gguf, blocks=blocks)
    scheme = read_scheme(directory)
    weights = SafetensorsWeights(directory, device)
    return weights if scheme is None else DequantisedWeights(weights, scheme)


def quant_method(hf: Any) -> str | None:
    """Return the `quant_method` of a configuration; None if not quantised."""
    for config in (hf, hf.get_text_config()):
        quantisation = getattr(config, "quantization_config", None)
        if quantisation is not None:
            values = quantisation if isinstance(quantisation, dict) else quantisation.to_dict()
            return str(values.get("quant_method"))
    return None
