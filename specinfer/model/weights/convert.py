"""Conversion of a GGUF file into a Hugging Face directory: config, tokenizer, bfloat16 safetensors."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from specinfer.model.weights.files import GgufWeights

KEPT_GGUF = "source.gguf"
"""Name of the unchanged file beside the converted weights, for the `NATIVE` ways to hold a model."""
NATIVE = ("native", "native-a8")
"""Values of `--weights` that keep the blocks of that file: with activations of 16 bits, and of 8."""


def convert_gguf(gguf: Path, directory: Path, report: Callable[[int, int], None]) -> None:
    """Dequantise every tensor once; `report(done, total)` counts tensors.

    Raises:
        OSError: if the result cannot be written.
    """
    from transformers import AutoConfig, AutoTokenizer

    weights = GgufWeights(gguf)
    tensors: dict[str, torch.Tensor] = {}
    for name in weights:
        tensors[name] = weights[name].to(torch.bfloat16)
        report(len(tensors), len(weights))
    try:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config.dtype = "bfloat16"
    config.save_pretrained(directory)
    shutil.copyfile(gguf, directory / KEPT_GGUF)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)
