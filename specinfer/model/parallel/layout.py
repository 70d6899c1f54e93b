"""Divides a model among ranks, and reads one rank's weights.

    rank = stage * tensor + place within the stage          tensor = 2, stages = 2:
                                                            stage 0   layers 0 .. L/2     ranks 0 1
                                                            stage 1   layers L/2 .. L     ranks 2 3

Within a stage every rank has some of the attention heads, some units of each MLP and some rows of the vocabulary. If
there are fewer key-value heads than ranks, several ranks have the same head. Weights are read in parts; their names
count the layers from the stage's first:

    divided by rows      query, key, value, gate and up projections; embeddings and head (by token)
    divided by columns   the projections that end attention and MLP; the first rank of a stage adds their bias
    whole                norms, learnt positions

Tensors of other stages have no rows here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from specinfer.errors import SettingError
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING, POSITIONS
from specinfer.model.weights.files import TensorSlice, read_part


class RankMemory(NamedTuple):
    """Bytes of one rank's weights and cache."""

    weight_bytes: int
    cache_bytes: int


class StageSeconds(NamedTuple):
    """Seconds of a pipeline since the start, summed over all ranks."""

    busy: float = 0.0
    idle: float = 0.0
    """Seconds of waiting for other stages (GPipe's bubble)."""

    @property
    def bubble(self) -> float:
        """Share of the time in which ranks were idle."""
        return self.idle / (self.busy + self.idle) if self.busy else 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Number of ranks per stage (`tensor`), and number of stages."""

    tensor: int = 1
    stages: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.stages

    def known_part(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration as ranks support it.

        Windows limit the context (`ModelConfig.like_llama`).
        """
        divided = self.tensor > 1 or self.stages == 1
        name, value = ("tensor_parallel", self.tensor) if divided else ("pipeline_parallel", self.stages)
        return config.like_llama(f"{name} = {value}")

    def __str__(self) -> str:
        return f"TP {self.tensor} x PP {self.stages}"


@dataclass(frozen=True, slots=True)
class Place:
    """Position of one rank in the layout."""

    layout: Layout
    rank: int

    @property
    def stage(self) -> int:
        return self.rank // self.layout.tensor

    @property
    def tensor(self) -> int:
        """Index among the ranks of the stage."""
        return self.rank % self.layout.tensor

    @property
    def is_first(self) -> bool:
        """True for the first stage, which has the embeddings."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """True for the last stage, which has the head."""
        return self.stage == self.layout.stages - 1

    def layers(self, count: int) -> range:
        """Return the layers of the rank's stage, out of `count`.

        If `count` is not a multiple of the stages, the first stages have one layer more: the last has the head.
        """
        per_stage, more = divmod(count, self.layout.stages)
        start = self.stage * per_stage + min(self.stage, more)
        return range(start, start + per_stage + (self.stage < more))

    def share(self, count: int) -> range:
        """Return the rank's part of `count` heads, MLP units or tokens.

        All parts are equal. If `count` is below the number of ranks, several ranks have the same one.
        """
        ranks = self.layout.tensor
        if count < ranks:
            first = self.tensor * count // ranks
            return range(first, first + 1)
        per_rank = count // ranks
        return range(self.tensor * per_rank, (self.tensor + 1) * per_rank)

    def of(self, config: ModelConfig) -> ModelConfig:
        """Return the rank's configuration: its layers, heads and MLP units."""
        return replace(
            config,
            layers=len(self.layers(config.layers)),
            heads=len(self.share(config.heads)),
            kv_heads=len(self.share(config.kv_heads)),
            intermediate_size=len(self.share(config.intermediate_size)),
        )


def check_layout(config: ModelConfig, layout: Layout) -> None:
    layout.known_part(config)
    if not 1 <= layout.stages <= config.layers:
        raise SettingError(
            "pipeline_parallel", layout.stages, f"must be from 1 to {config.layers}, the model's layers"
        )
    parts = {
        "attention heads": config.heads,
        "tokens in the vocabulary": config.vocab_size,
        "MLP units (intermediate_size)": config.intermediate_size,
    }
    for what, count in parts.items():
        if count % layout.tensor:
            raise SettingError("tensor_parallel", layout.tensor, f"must divide the model's {count} {what}")
    if config.kv_heads % layout.tensor and layout.tensor % config.kv_heads:
        raise SettingError(
            "tensor_parallel",
            layout.tensor,
            f"must divide the model's {config.kv_heads} key-value heads, or be a multiple of them",
        )


_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_HEAD = "lm_head.weight"
_HEADS = {"self_attn.q_proj": "heads", "self_attn.k_proj": "kv_heads", "self_attn.v_proj": "kv_heads"}
_INNER = ("mlp.gate_proj", "mlp.up_proj")
_ATTENDED, _DOWN = "self_attn.o_proj", "mlp.down_proj"


class ShardedWeights(Mapping[str, "torch.Tensor"]):
    """One rank's part of a model's weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], place: Place) -> None:
        """Prepare reading; `weights` are the whole model's, under Llama's names."""
        self._config, self._weights, self._place = config, weights, place
        self._layers = place.layers(config.layers)

    def __getitem__(self, name: str) -> torch.Tensor:
        match = _LAYER.fullmatch(name)
        if match is None:
            return self._outside(name)
        module, kind = match[2], match[3]
        stored = f"model.layers.{self._layers[int(match[1])]}.{module}.{kind}"
        if module in (_ATTENDED, _DOWN):
            return self._ending(stored, module, kind)
        if module in _HEADS:
            heads = self._place.share(getattr(self._config, _HEADS[module]))
            return self._rows(stored, heads, self._config.head_dim)
        if module in _INNER:
            return self._rows(stored, self._place.share(self._config.intermediate_size))
        return self._weights[stored]

    def _outside(self, name: str) -> torch.Tensor:
        ends = self._place.is_last and (name == _HEAD or self._config.tied_embeddings)
        if name in (EMBEDDING, _HEAD):
            here = ends or (name == EMBEDDING and self._place.is_first)
            return self._rows(name, self._place.share(self._config.vocab_size) if here else range(0))
        if name == POSITIONS and not self._place.is_first:
            return self._rows(name, range(0))
        return self._weights[name]

    def _rows(self, name: str, which: range, size: int = 1) -> torch.Tensor:
        """Return rows of the items in `which`; each item has `size` rows."""
        return read_part(self._weights, name, TensorSlice(0, which.start * size, which.stop * size))

    def _ending(self, name: str, module: str, kind: str) -> torch.Tensor:
        """Return the rank's columns of an output projection, or its bias."""
        if kind == "bias":
            bias = self._weights[name]
            return torch.zeros_like(bias) if self._place.tensor else bias
        config, size = self._config, self._config.head_dim
        if module == _DOWN:
            inputs, size = self._place.share(config.intermediate_size), 1
        else:
            inputs = self._place.share(config.heads)
        return read_part(self._weights, name, TensorSlice(1, inputs.start * size, inputs.stop * size))

    def __contains__(self, name: object) -> bool:
        match = _LAYER.fullmatch(str(name))
        if match is None:
            return name in self._weights
        return f"model.layers.{self._layers[int(match[1])]}.{match[2]}.{match[3]}" in self._weights

    def __iter__(self) -> Iterator[str]:
        for name in self._weights:
            match = _LAYER.fullmatch(name)
            if match is None:
                yield name
            elif int(match[1]) in self._layers:
                yield f"model.layers.{self._layers.index(int(match[1]))}.{match[2]}.{match[3]}"

    def __len__(self) -> int:
        return sum(1 for _ in self)
