"""The decoder: embeddings, L layers of attention and gated MLP, final norm, head.

Works on a flattened pass of T tokens; which token belongs to which request is known only to the
attention backend. Plain objects instead of `nn.Module`: inference only, weights fused on loading
(q, k, v into one layer, gate and up into one).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from specinfer.errors import IncompatibleError
from specinfer.model.config import ModelConfig
from specinfer.model.linear import Linear, make_linear

Weights = Mapping[str, torch.Tensor]
Fetch = Callable[[str], torch.Tensor]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query [T, H, D], key and value [T, KV heads, D]) -> [T, H, D]; also stores key and value."""

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
}


def rotary_tables(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [positions, D] in float32."""
    positions = torch.arange(config.max_positions, dtype=torch.float32)
    angles = torch.outer(positions, torch.tensor(config.inv_freq))
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * config.rotary_scale, angles.sin() * config.rotary_scale


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates x [T, H, D] by the angles of its tokens' positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class RMSNorm:
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self._weight * wide.to(x.dtype)


class Layer:
    """One decoder layer."""

    def __init__(self, index: int, config: ModelConfig, fetch: Fetch, has: Callable[[str], bool]) -> None:
        prefix = f"model.layers.{index}."
        self._index, self._config = index, config
        self._act = ACTIVATIONS[config.activation]

        def norm(name: str) -> RMSNorm:
            return RMSNorm(fetch(f"{prefix}{name}.weight"), config.norm_eps)

        def linear(*names: str) -> Linear:
            weights = [fetch(f"{prefix}{name}.weight") for name in names]
            with_bias = has(f"{prefix}{names[0]}.bias")
            bias = torch.cat([fetch(f"{prefix}{name}.bias") for name in names]) if with_bias else None
            return make_linear(torch.cat(weights), bias)

        self._input_norm = norm("input_layernorm")
        self._post_norm = norm("post_attention_layernorm")
        self._qkv = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self._out = linear("self_attn.o_proj")
        self._gate_up = linear("mlp.gate_proj", "mlp.up_proj")
        self._down = linear("mlp.down_proj")
        self._q_norm = norm("self_attn.q_norm") if config.qk_norm else None
        self._k_norm = norm("self_attn.k_norm") if config.qk_norm else None

    def __call__(
        self,
        x: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        """Maps hidden states [T, hidden] to those of the next layer."""
        query, key, value = self._project(self._input_norm(x), angles)
        x = x + self._out(attend(self._index, query, key, value).flatten(1))
        gate, up = self._gate_up(self._post_norm(x)).chunk(2, dim=-1)
        return x + self._down(self._act(gate) * up)

    def _project(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        c = self._config
        qkv = self._qkv(x).view(len(x), c.heads + 2 * c.kv_heads, c.head_dim)
        query, key, value = torch.split(qkv, [c.heads, c.kv_heads, c.kv_heads], dim=1)
        if self._q_norm is not None and self._k_norm is not None:
            query, key = self._q_norm(query), self._k_norm(key)
        return rotate(query, *angles), rotate(key, *angles), value


class Transformer:
    """A decoder with its weights."""

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        if config.activation not in ACTIVATIONS:
            raise IncompatibleError(
                f"hidden_act = {config.activation!r}: supported are {', '.join(ACTIVATIONS)}"
            )
        self.config, self.dtype, self.device = config, dtype, device

        def fetch(name: str) -> torch.Tensor:
            if name not in weights:
                raise IncompatibleError(f"the model's weights lack {name}")
            return weights[name].to(device=device, dtype=dtype)

        self._embedding = fetch("model.embed_tokens.weight")
        self._layers = [Layer(i, config, fetch, lambda n: n in weights) for i in range(config.layers)]
        self._norm = RMSNorm(fetch("model.norm.weight"), config.norm_eps)
        self._head = make_linear(self._embedding if config.tied_embeddings else fetch("lm_head.weight"))
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(config))

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        """Hidden states [T, hidden] before the final norm."""
        x = F.embedding(token_ids, self._embedding)
        angles = self._cos[positions][:, None], self._sin[positions][:, None]
        for layer in self._layers:
            x = layer(x, angles, attend)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, V] float32 logits of hidden states [R, hidden]."""
        return self._head(self._norm(hidden)).float()
