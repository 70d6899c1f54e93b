"""A model of ours in safetensors, for systems that read no GGUF file."""

from pathlib import Path

import torch

from specinfer.hub import resolve_model
from specinfer.model.weights.account import load_whole
from specinfer.model.weights.beside import copy_beside
from specinfer.model.weights.config import load_config
from specinfer.system.cache_directory import cache_directory


def write_float_model(model: str) -> Path:
    """Write a model as bfloat16 into the cache, unless it is there; return the directory."""
    source, directory = resolve_model(model), cache_directory() / "float" / model
    if not (directory / "model.safetensors").is_file():
        load_whole(source, load_config(source).family, torch.bfloat16).save_pretrained(directory)
        copy_beside(source, directory)
    return directory
