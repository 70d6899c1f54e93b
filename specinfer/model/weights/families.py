"""Families with other names than Llama: their tensors under the names that our decoder reads.

    OPT       renamed; the table of positions begins with two unused rows
    GPT-NeoX  renamed; query, key and value of a head lie one below the other in one matrix

A mapping that is in Llama's names already comes back as it is: those of a trained SSM are.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.files import TensorSlice, read_part, shape_of
from specinfer.model.weights.packed import open_checkpoint

EMBEDDING, POSITIONS = "model.embed_tokens.weight", "model.embed_positions.weight"
_OPT_UNUSED_POSITIONS = 2
_OPT_NAMES = {
    ".self_attn.out_proj.": ".self_attn.o_proj.",
    ".self_attn_layer_norm.": ".input_layernorm.",
    ".final_layer_norm.": ".post_attention_layernorm.",
    ".fc1.": ".mlp.up_proj.",
    ".fc2.": ".mlp.down_proj.",
}
_GPT_NEOX_NAMES = {
    ".attention.dense.": ".self_attn.o_proj.",
    ".mlp.dense_h_to_4h.": ".mlp.up_proj.",
    ".mlp.dense_4h_to_h.": ".mlp.down_proj.",
    "model.embed_in.": "model.embed_tokens.",
    "model.final_layer_norm.": "model.norm.",
}


class _Source(NamedTuple):
    name: str
    pick: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Part of the tensor to take; None: all."""


class _Told(Mapping[str, torch.Tensor]):
    """Weights under other names."""

    def __init__(self, weights: Mapping[str, torch.Tensor], sources: Mapping[str, _Source]) -> None:
        self._weights, self._sources = weights, sources

    def __getitem__(self, name: str) -> torch.Tensor:
        source, pick = self._sources[name]
        tensor = self._weights[source]
        return pick(tensor) if pick else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        source, pick = self._sources[name]
        shape = shape_of(self._weights, source)
        try:
            return tuple(pick(torch.empty(shape, device="meta")).shape) if pick else shape
        except (RuntimeError, IndexError) as error:
            raise IncompatibleError(f"{source} has shape {list(shape)}: not what its name says") from error

    def origin(self, name: str) -> str:
        """Return the name of a tensor in the checkpoint."""
        return self._sources[name].name

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        source, pick = self._sources[name]
        if pick is None:
            return read_part(self._weights, source, span)
        return self[name].narrow(span.dim, span.start, span.stop - span.start).clone()

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def open_weights(directory: Path, config: ModelConfig) -> Mapping[str, torch.Tensor]:
    """Return the tensors of a model directory, in Llama's names."""
    return in_llama_names(config, open_checkpoint(directory))


def original_name(weights: Mapping[str, torch.Tensor], name: str) -> str:
    """Return the name of a tensor in the checkpoint that some weights in Llama's names come from."""
    return weights.origin(name) if isinstance(weights, _Told) else name


def in_llama_names(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the weights under the names that our decoder reads."""
    tell = {"opt": _opt, "gpt_neox": _gpt_neox}.get(config.family)
    if tell is None or "model.norm.weight" in weights:
        return weights
    sources: dict[str, _Source] = {}
    for name in weights:
        sources |= tell(config, name)
    return _Told(weights, sources)


def _opt(config: ModelConfig, name: str) -> dict[str, _Source]:
    told = name.removeprefix("model.").removeprefix("decoder.")
    if told == "embed_positions.weight":
        return {POSITIONS: _Source(name, lambda table: table[_OPT_UNUSED_POSITIONS:])}
    if told.startswith("final_layer_norm."):
        return {told.replace("final_layer_norm.", "model.norm."): _Source(name)}
    told = told if told.startswith("lm_head.") else f"model.{told}"
    return {_replaced(told, _OPT_NAMES): _Source(name)}


def _gpt_neox(config: ModelConfig, name: str) -> dict[str, _Source]:
    if name in ("embed_out.weight", "lm_head.weight"):
        return {"lm_head.weight": _Source(name)}
    told = f"model.{name.removeprefix('gpt_neox.')}"
    if ".attention.query_key_value." not in told:
        return {_replaced(told, _GPT_NEOX_NAMES): _Source(name)}

    def third(which: int) -> Callable[[torch.Tensor], torch.Tensor]:
        shape = (config.heads, 3, config.head_dim)
        return lambda fused: fused.reshape(*shape, *fused.shape[1:])[:, which].flatten(0, 1)

    return {
        told.replace("attention.query_key_value", f"self_attn.{part}_proj"): _Source(name, third(which))
        for which, part in enumerate("qkv")
    }


def _replaced(name: str, parts: Mapping[str, str]) -> str:
    for old, new in parts.items():
        name = name.replace(old, new)
    return name
