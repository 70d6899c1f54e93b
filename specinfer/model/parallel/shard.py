"""Weights of one rank: read in parts, under the names that a decoder of its layers reads.

    divided by rows      query, key, value, gate and up projections; embeddings and head (by token)
    divided by columns   the projections that end attention and MLP; the first rank of a stage adds their bias
    whole                norms, learnt positions

What belongs to another stage has no rows here.
"""

import re
from collections.abc import Iterator, Mapping

import torch

from specinfer.model.parallel.layout import Place
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING, POSITIONS
from specinfer.model.weights.files import TensorSlice, read_part

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_HEAD = "lm_head.weight"
_HEADS = {"self_attn.q_proj": "heads", "self_attn.k_proj": "kv_heads", "self_attn.v_proj": "kv_heads"}
_INNER = ("mlp.gate_proj", "mlp.up_proj")
_ATTENDED, _DOWN = "self_attn.o_proj", "mlp.down_proj"


class ShardedWeights(Mapping[str, torch.Tensor]):
    """One rank's part of a model's weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, torch.Tensor], place: Place) -> None:
        """Prepare the reading; `config` is the whole model's, `weights` are under Llama's names."""
        self._config, self._weights, self._place = config, weights, place
        self._layers = place.layers(config.layers)

    def __getitem__(self, name: str) -> torch.Tensor:
        found = _LAYER.fullmatch(name)
        if found is None:
            return self._outside(name)
        module, kind = found[2], found[3]
        stored = f"model.layers.{self._layers[int(found[1])]}.{module}.{kind}"
        if module in (_ATTENDED, _DOWN):
            return self._ending(stored, module, kind)
        if module in _HEADS:
            heads = self._place.share(getattr(self._config, _HEADS[module]))
            return self._rows(stored, heads, self._config.head_dim)
        if module in _INNER:
            return self._rows(stored, self._place.share(self._config.intermediate_size))
        return self._weights[stored]

    def _outside(self, name: str) -> torch.Tensor:
        """Return a tensor outside the layers."""
        ends = self._place.is_last and (name == _HEAD or self._config.tied_embeddings)
        if name in (EMBEDDING, _HEAD):
            here = ends or (name == EMBEDDING and self._place.is_first)
            return self._rows(name, self._place.share(self._config.vocab_size) if here else range(0))
        if name == POSITIONS and not self._place.is_first:
            return self._rows(name, range(0))
        return self._weights[name]

    def _rows(self, name: str, which: range, size: int = 1) -> torch.Tensor:
        """Return rows of things of `size` rows each."""
        return read_part(self._weights, name, TensorSlice(0, which.start * size, which.stop * size))

    def _ending(self, name: str, module: str, kind: str) -> torch.Tensor:
        """Return the rank's part of a projection whose inputs are divided: its columns, and its bias once."""
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
        found = _LAYER.fullmatch(str(name))
        if found is None:
            return name in self._weights
        return f"model.layers.{self._layers[int(found[1])]}.{found[2]}.{found[3]}" in self._weights

    def __iter__(self) -> Iterator[str]:
        for name in self._weights:
            found = _LAYER.fullmatch(name)
            if found is None:
                yield name
            elif int(found[1]) in self._layers:
                yield f"model.layers.{self._layers.index(int(found[1]))}.{found[2]}.{found[3]}"

    def __len__(self) -> int:
        return sum(1 for _ in self)
