"""The decoder: embeddings, L layers of attention and MLP, final norm, head.

Works on a flattened pass of T tokens; which token belongs to which request is known only to the
attention backend. Plain objects instead of `nn.Module`: inference only, weights fused on loading
(q, k, v into one layer, gate and up into one).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Features
from specinfer.model.layers.linear import Linear, make_linear
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import POSITIONS

Weights = Mapping[str, torch.Tensor]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query [T, H, D], key and value [T, KV heads, D]) -> [T, H, D]; also stores key and value."""
LayerCall = Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None, Attend], torch.Tensor]
"""(hidden states [T, hidden], angles of the positions, attention) -> [T, hidden] behind one layer."""


class Surgery(Protocol):
    """What ranks that share a model put around the parts of a decoder whose weights they have divided."""

    def embedding(self, lookup: Linear) -> Linear:
        """Around the lookup of token ids [T] in this rank's rows of the embeddings."""

    def output(self, linear: Linear) -> Linear:
        """Around a layer whose inputs are divided: each rank has a summand of its output."""

    def head(self, linear: Linear) -> Linear:
        """Around the head: each rank has the logits of its part of the vocabulary."""


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
}

LAYER_MODULES = (
    *("input_layernorm", "post_attention_layernorm"),
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""What a layer may have; each a weight, some a bias."""


def rotary_tables(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [positions, R] in float32."""
    positions = torch.arange(config.max_positions, dtype=torch.float32)
    angles = torch.outer(positions, torch.tensor(config.inv_freq))
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * config.rotary_scale, angles.sin() * config.rotary_scale


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the first R dimensions of x [T, H, D] by the angles of its tokens' positions, [T, 1, R]."""
    turned = x[..., : cos.shape[-1]]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-second, first], dim=-1) * sin
    rest = x[..., cos.shape[-1] :]
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


class RMSNorm:
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class LayerNorm:
    """Norm by mean and variance over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


class Parts:
    """Makes the parts of a decoder from its weights."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: str) -> None:
        self._config, self._weights, self._dtype, self._device = config, weights, dtype, device
        self.loaded_bytes = 0

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._weights:
            raise IncompatibleError(f"the model's weights lack {name}")
        loaded = self._weights[name].to(device=self._device, dtype=self._dtype)
        self.loaded_bytes += loaded.nbytes
        return loaded

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where a tensor that a part is made of stays: here, where it is."""
        return tensor

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """A linear layer of tensors that stay."""
        return make_linear(weight, bias)

    def norm(self, name: str) -> RMSNorm | LayerNorm:
        weight = self.keep(self.tensor(f"{name}.weight"))
        if self._config.layer_norm:
            return LayerNorm(weight, self.keep(self.tensor(f"{name}.bias")), self._config.norm_eps)
        return RMSNorm(weight, self._config.norm_eps)

    def linear(self, prefix: str, *names: str) -> Linear:
        """One layer of the rows of several."""
        weights = [self.tensor(f"{prefix}{name}.weight") for name in names]
        with_bias = f"{prefix}{names[0]}.bias" in self._weights
        weight, bias = self.keep(torch.cat(weights)), None
        if with_bias:
            bias = self.keep(torch.cat([self.tensor(f"{prefix}{name}.bias") for name in names]))
        return self.make(weight, bias)


class Layer:
    """One decoder layer."""

    def __init__(self, index: int, config: ModelConfig, parts: Parts) -> None:
        prefix = f"model.layers.{index}."
        self._index, self._config = index, config
        self._act = ACTIVATIONS[config.activation]
        self.input_norm = parts.norm(f"{prefix}input_layernorm")
        self._post_norm = parts.norm(f"{prefix}post_attention_layernorm")
        self._qkv = parts.linear(f"{prefix}self_attn.", "q_proj", "k_proj", "v_proj")
        self._out = parts.linear(f"{prefix}self_attn.", "o_proj")
        self._up = parts.linear(f"{prefix}mlp.", *(["gate_proj"] if config.gated else []), "up_proj")
        self._down = parts.linear(f"{prefix}mlp.", "down_proj")
        self._q_norm = parts.norm(f"{prefix}self_attn.q_norm") if config.qk_norm else None
        self._k_norm = parts.norm(f"{prefix}self_attn.k_norm") if config.qk_norm else None

    def __call__(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        attend: Attend,
    ) -> torch.Tensor:
        """Maps hidden states [T, hidden] to those of the next layer."""
        return self.behind(x, self.input_norm(x), angles, attend)

    def behind(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        attend: Attend,
    ) -> torch.Tensor:
        """The same, with what attention reads given: `normed` [T, width of the projections]."""
        query, key, value = self._project(normed, angles)
        attended = x + self._out(attend(self._index, query, key, value).flatten(1))
        return attended + self._mlp(self._post_norm(x if self._config.parallel else attended))

    def operate(self, surgery: Surgery) -> None:
        """Lets ranks divide attention heads and the inside of the MLP among them."""
        self._out, self._down = surgery.output(self._out), surgery.output(self._down)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        if not self._config.gated:
            return self._down(self._act(self._up(x)))
        gate, up = self._up(x).chunk(2, dim=-1)
        return self._down(self._act(gate) * up)

    def _project(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        c = self._config
        qkv = self._qkv(x).view(len(x), c.heads + 2 * c.kv_heads, c.head_dim)
        query, key, value = torch.split(qkv, [c.heads, c.kv_heads, c.kv_heads], dim=1)
        if self._q_norm is not None and self._k_norm is not None:
            query, key = self._q_norm(query), self._k_norm(key)
        if angles is not None:
            query, key = rotate(query, *angles), rotate(key, *angles)
        return query, key, value


def _keep(features: Features | None, layers: int, x: torch.Tensor) -> None:
    """Writes down the hidden states [T, hidden] after so many layers, if they are asked for."""
    if features is not None and layers in features.layers:
        features.states[:, features.layers.index(layers)] = x.float().cpu().numpy()


class Transformer:
    """A decoder with its weights."""

    layer_type: Callable[[int, ModelConfig, "Parts"], Layer] = Layer
    """Makes its layers."""

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
        """Of all tensors on the device that do not come and go."""
        parts = Parts(config, weights, dtype, device)
        table = parts.tensor("model.embed_tokens.weight")
        self._lookup: Linear = partial(F.embedding, weight=table)
        self._positions = None if config.rotary_dim else parts.tensor(POSITIONS)
        self._layers = self._make_layers(weights)
        self._norm = parts.norm("model.norm")
        tied = config.tied_embeddings
        self._head = make_linear(table if tied else parts.tensor("lm_head.weight"))
        self._cos, self._sin = (angles.to(device, dtype) for angles in rotary_tables(config))
        self.weight_bytes += parts.loaded_bytes + self._cos.nbytes + self._sin.nbytes
        if surgery is not None:
            self._operate(surgery)

    def _operate(self, surgery: Surgery) -> None:
        self._lookup, self._head = surgery.embedding(self._lookup), surgery.head(self._head)
        for layer in self._layers:
            assert isinstance(layer, Layer), "layers that come and go are not divided"
            layer.operate(surgery)

    def _make_layers(self, weights: Weights) -> Sequence[LayerCall]:
        """All decoder layers, in order."""
        parts = Parts(self.config, weights, self.dtype, self.device)
        layers = [self.layer_type(index, self.config, parts) for index in range(self.config.layers)]
        self.weight_bytes += parts.loaded_bytes
        return layers

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Hidden states [T, hidden] before the final norm; writes down those asked for."""
        return self.through(self.embed(token_ids, positions), positions, attend, features)

    def embed(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states [T, hidden] before the first layer."""
        x = self._lookup(token_ids)
        return x if self._positions is None else x + self._positions[positions]

    def through(
        self, x: torch.Tensor, positions: torch.Tensor, attend: Attend, features: Features | None = None
    ) -> torch.Tensor:
        """Hidden states [T, hidden] behind all layers, of those before the first one."""
        angles = None
        if self._positions is None:
            angles = self._cos[positions][:, None], self._sin[positions][:, None]
        for number, layer in enumerate(self._layers):
            _keep(features, number, x)
            x = layer(x, angles, attend)
        _keep(features, len(self._layers), x)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, V] float32 logits of hidden states [R, hidden]."""
        return self._head(self._norm(hidden)).float()
