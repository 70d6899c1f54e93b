"""Conversion of a GGUF file into a Hugging Face directory: config, tokenizer, bfloat16 safetensors."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from specinfer.errors import IncompatibleError, SpecInferError
from specinfer.model.weights.files import GgufWeights
from specinfer.model.weights.gguf_files.vocabulary import save_tokenizer

KEPT_GGUF = "source.gguf"
"""Name of the unchanged file beside the converted weights: its blocks are what is loaded."""


def convert_gguf(gguf: Path, directory: Path, report: Callable[[int, int], None]) -> None:
    """Dequantise every tensor once; `report(done, total)` counts tensors.

    Raises:
        IncompatibleError: if something in the file is not understood.
        OSError: if the result cannot be written.
    """
    try:
        _convert(gguf, directory, report)
    except (SpecInferError, OSError):
        raise
    except Exception as error:  # raised for values of another kind than files have
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise IncompatibleError(f"cannot read {gguf} as a GGUF file: {what}") from error


def _convert(gguf: Path, directory: Path, report: Callable[[int, int], None]) -> None:
    from transformers import GenerationConfig

    weights = GgufWeights(gguf)
    config = weights.config()  # what is not understood is refused before anything is written
    tensors: dict[str, torch.Tensor] = {}
    for name in weights:
        tensors[name] = weights[name].to(torch.bfloat16)
        report(len(tensors), len(weights))
    try:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    config.dtype = "bfloat16"
    config.save_pretrained(directory)
    ends = weights.vocabulary.end_tokens()
    if len(ends) > 1:  # `config.json` has one
        GenerationConfig(eos_token_id=ends).save_pretrained(directory)
    if weights.parts == 1:
        shutil.copyfile(gguf, directory / KEPT_GGUF)
    save_tokenizer(gguf, weights.vocabulary, directory)
