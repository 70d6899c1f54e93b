"""Cuts of a model: some of its layers, and of each some key-value heads and some neurons of the MLP.

A key-value head is cut with the query heads that read it, which are as many for each. What is left is a model
of the same family: rows of q, k, v, gate and up go, and the columns of o and down that would read them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from specinfer.errors import IncompatibleError
from specinfer.model.families import family_of
from specinfer.model.weights.beside import copy_beside
from specinfer.model.weights.config import ModelConfig, load_config, shape_fields

_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_QUERY, _KEY_VALUE = re.compile(r"\.q_proj\.(weight|bias)$"), re.compile(r"\.[kv]_proj\.(weight|bias)$")
_INTO_MLP = re.compile(r"\.(gate|up)_proj\.weight$")

_MARK = "pruned"
"""Field of `config.json` that says how a model was pruned."""


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Remaining parts of a layer."""

    layer: int
    """Its number in the original."""
    kv_heads: tuple[int, ...]
    """Remaining key-value heads; all layers keep as many."""
    neurons: tuple[int, ...]
    """Remaining neurons of the MLP; all layers keep as many."""


def check_prunable(config: ModelConfig) -> None:
    """Check that a model can be cut.

    Raises:
        IncompatibleError: if its layers are not Llama's.
    """
    config.like_llama("pruning")
    if family_of(config.family).rename is not None:
        raise IncompatibleError(f"model_type = {config.family!r}: only Llama and its kin are pruned")


def is_pruned(directory: Path) -> bool:
    """Return whether a directory holds a pruned model."""
    path = directory / "config.json"
    return path.is_file() and _MARK in json.loads(path.read_text())


def whole_layers(config: ModelConfig, layers: Sequence[int]) -> list[LayerCut]:
    """Return cuts of some layers that keep all of their parts."""
    heads, neurons = tuple(range(config.kv_heads)), tuple(range(config.intermediate_size))
    return [LayerCut(layer, heads, neurons) for layer in layers]


def pruned_config(config: ModelConfig, cuts: Sequence[LayerCut]) -> ModelConfig:
    """Return the shape of the remaining model."""
    kv_heads = len(cuts[0].kv_heads)
    return replace(
        config,
        layers=len(cuts),
        heads=kv_heads * (config.heads // config.kv_heads),
        kv_heads=kv_heads,
        intermediate_size=len(cuts[0].neurons),
    )


def pruned_tensors(
    weights: Mapping[str, torch.Tensor], config: ModelConfig, cuts: Sequence[LayerCut]
) -> dict[str, torch.Tensor]:
    """Return the tensors of the remaining model, given those of the model with this `config`."""
    places = {cut.layer: place for place, cut in enumerate(cuts)}
    tensors = {}
    for name in weights:
        found = _IN_LAYER.fullmatch(name)
        if found is None:
            tensors[name] = weights[name]
        elif int(found[1]) in places:
            place = places[int(found[1])]
            kept = _cut(name, weights[name], config, cuts[place])
            tensors[f"model.layers.{place}.{found[2]}"] = kept.contiguous()
    return tensors


def save_pruned(
    source: Path,
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    config: ModelConfig,
    cuts: Sequence[LayerCut],
    record: Mapping[str, Any],
) -> None:
    """Write a model into an empty directory, in bfloat16.

    Args:
        source: directory of the original.
        config: of what is left.
        record: history of the cut for `config.json`.

    Raises:
        OSError: if the result cannot be written.
    """
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    try:
        save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from error
    fields = json.loads((source / "config.json").read_text())
    shape = shape_fields(config, load_config(source))
    fields |= {**shape, "dtype": "bfloat16", _MARK: dict(record)}
    if fields.get("layer_types"):  # some families have one for each layer
        fields["layer_types"] = [fields["layer_types"][cut.layer] for cut in cuts]
    copy_beside(source, directory)
    (directory / "config.json").write_text(json.dumps(fields, indent=2) + "\n")


def _cut(name: str, tensor: torch.Tensor, config: ModelConfig, cut: LayerCut) -> torch.Tensor:
    """Return the remaining part of a layer's tensor."""
    of_query = config.heads // config.kv_heads * config.head_dim
    if _QUERY.search(name):
        return tensor[_rows(cut.kv_heads, of_query)]
    if _KEY_VALUE.search(name):
        return tensor[_rows(cut.kv_heads, config.head_dim)]
    if name.endswith(".o_proj.weight"):
        return tensor[:, _rows(cut.kv_heads, of_query)]
    if _INTO_MLP.search(name):
        return tensor[list(cut.neurons)]
    if name.endswith(".down_proj.weight"):
        return tensor[:, list(cut.neurons)]
    return tensor


def _rows(parts: Sequence[int], width: int) -> torch.Tensor:
    """Return the rows of some parts, of `width` rows each."""
    return (torch.tensor(parts)[:, None] * width + torch.arange(width)).flatten()
