"""The decoder in torch: embeddings, L layers, final norm, head.

It works on a flattened pass of T tokens; only the attention backend knows the tokens' requests. Layers are plain
objects instead of `nn.Module`: inference only, with weights fused on loading (q, k and v; gate and up).
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from specinfer.model.batch import PassFeatures
from specinfer.model.families.experts import SINKS
from specinfer.model.families.positions import NO_ROTARY
from specinfer.model.torch.layer import Attend, Layer
from specinfer.model.torch.linear import Linear, Surgery
from specinfer.model.torch.parts import Parts, soft_capped
from specinfer.model.torch.rotary import Angles, all_rotary_tables
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import POSITIONS
from specinfer.model.weights.interfaces import Weights
from specinfer.system.progress import progress

LayerCall = Callable[[torch.Tensor, Angles | None, Attend], torch.Tensor]
"""A layer: (hidden states [T, hidden], angles, attention) -> hidden states."""


def _keep(features: PassFeatures | None, layers: int, x: torch.Tensor) -> None:
    """Write the hidden states [T, hidden] after `layers` layers, if requested."""
    if features is not None and layers in features.layers:
        features.states[:, features.layers.index(layers)] = x.float().cpu().numpy()


class Transformer:
    layer_type: Callable[[int, ModelConfig, Parts], Layer] = Layer

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: str = "cpu",
        surgery: Surgery | None = None,
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.weight_bytes = 0
        """Bytes of all tensors on the device."""
        parts = Parts(config, weights, dtype, device)
        table = parts.tensor("model.embed_tokens.weight")
        self._lookup: Linear = partial(F.embedding, weight=table)
        self._positions = None if config.rotary_dim else parts.tensor(POSITIONS)
        self.layers = self._make_layers(weights)
        self.sinks = [
            parts.tensor(f"model.layers.{layer}.{SINKS}", torch.float32) if config.sinks else None
            for layer in range(config.layers)
        ]
        """[heads] attention sinks of each layer; None: the model has no sinks."""
        self._norm = parts.norm("model.norm")
        tied = config.tied_embeddings
        self._head = parts.make(table if tied else parts.tensor("lm_head.weight"), None)
        self._tables = [
            (cos.to(device, dtype), sin.to(device, dtype)) for cos, sin in all_rotary_tables(config)
        ]
        self.weight_bytes += parts.loaded_bytes + sum(cos.nbytes + sin.nbytes for cos, sin in self._tables)
        if surgery is not None:
            self._operate(surgery)

    def _operate(self, surgery: Surgery) -> None:
        self._lookup, self._head = surgery.embedding(self._lookup), surgery.head(self._head)
        for layer in self.layers:
            assert isinstance(layer, Layer), "offloaded layers are not divided"
            layer.operate(surgery)

    def _make_layers(self, weights: Weights) -> Sequence[LayerCall]:
        parts = Parts(self.config, weights, self.dtype, self.device)
        layers, count = [], self.config.layers
        with progress("reading weights") as report:
            for index in range(count):
                layers.append(self.layer_type(index, self.config, parts))
                report(index + 1, count)
        self.weight_bytes += parts.loaded_bytes
        return layers

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        features: PassFeatures | None = None,
    ) -> torch.Tensor:
        """Return hidden states [T, hidden] before the final norm; fill `features`."""
        return self.through(self.embed(token_ids, positions), positions, attend, features)

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden states [T, hidden] before the first layer."""
        x = self._lookup(token_ids)
        if self.config.embedding_scale != 1:
            x = x * torch.tensor(self.config.embedding_scale, dtype=self.dtype, device=self.device)
        return x if self._positions is None else x + self._positions[positions]

    def through(
        self, x: torch.Tensor, positions: torch.Tensor, attend: Attend, features: PassFeatures | None = None
    ) -> torch.Tensor:
        """Return hidden states [T, hidden] after all layers; fill `features`."""
        angles = [self.angles(positions, table) for table in range(len(self._tables))]
        for number, layer in enumerate(self.layers):
            _keep(features, number, x)
            table = self.config.rotary_of(number)
            x = layer(x, None if table == NO_ROTARY else angles[table], attend)
        _keep(features, len(self.layers), x)
        return x

    def angles(self, positions: torch.Tensor, table: int = 0) -> Angles | None:
        """Return cosines and sines [T, 1, R]; None: positions are learnt."""
        if self._positions is not None:
            return None
        cos, sin = self._tables[table]
        return cos[positions][:, None], sin[positions][:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [R, V] of hidden states [R, hidden]."""
        logits = self._head(self._norm(hidden)).float()
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        return soft_capped(logits, self.config.logit_cap)
