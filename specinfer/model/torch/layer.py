"""Computes one decoder layer: attention and MLP.

Query, key and value projections are one matrix, and so are gate and up.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from specinfer.model.torch.experts import Mixture
from specinfer.model.torch.linear import Linear, Surgery
from specinfer.model.torch.parts import Norm, Parts
from specinfer.model.torch.rotary import Angles, rotate
from specinfer.model.weights.config import ModelConfig

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Stores a layer's keys and values; returns attention [T, H, D].

Arguments: layer, query [T, H, D], key and value [T, KV heads, D].
"""

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}

LAYER_MODULES = (
    *("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""Modules of a layer that may have a weight and a bias."""
OUTPUTS = ("self_attn.o_proj", "mlp.down_proj")


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


class Mlp:
    """The MLP of a layer or an expert."""

    def __init__(self, prefix: str, config: ModelConfig, parts: Parts) -> None:
        self._act, self._gated = ACTIVATIONS[config.activation], config.gated
        experts = config.experts
        self._limit, self._alpha = (experts.limit, experts.alpha) if experts else (0.0, 1.0)
        self.up: Linear = parts.linear(prefix, *(["gate_proj"] if config.gated else []), "up_proj")
        self.down: Linear = parts.linear(prefix, "down_proj")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._gated:
            return self.down(self._act(self.up(x)))
        gate, up = self.up(x).chunk(2, dim=-1)
        if not self._limit:
            return self.down(self._act(gate) * up)
        gate, up = gate.clamp(max=self._limit), up.clamp(-self._limit, self._limit)
        return self.down((up + 1) * gate * torch.sigmoid(self._alpha * gate))


class Layer:
    mlp_type: type[Mlp] = Mlp

    def __init__(self, index: int, config: ModelConfig, parts: Parts) -> None:
        prefix = f"model.layers.{index}."
        self._index, self._config = index, config

        def norm(name: str, wanted: bool) -> Norm:
            return parts.norm(f"{prefix}{name}") if wanted else _unchanged

        self.input_norm = norm("input_layernorm", config.pre_norm)
        self._post_norm = norm("post_attention_layernorm", config.pre_norm)
        self._attended_norm = norm("post_self_attn_layernorm", config.post_norm)
        self._mlp_norm = norm("post_mlp_layernorm", config.post_norm)
        self._qkv = parts.linear(f"{prefix}self_attn.", "q_proj", "k_proj", "v_proj")
        self._out = parts.linear(f"{prefix}self_attn.", "o_proj")
        experts = config.experts_of(index)
        self._mlp: Mlp | Mixture
        if experts is None:
            self._mlp = self.mlp_type(f"{prefix}mlp.", config, parts)
        else:
            self._mlp = Mixture(prefix, experts, parts, lambda name: self.mlp_type(name, config, parts))
        self._q_norm = parts.norm(f"{prefix}self_attn.q_norm") if config.qk_norm else None
        self._k_norm = parts.norm(f"{prefix}self_attn.k_norm") if config.qk_norm else None

    def __call__(
        self,
        x: torch.Tensor,
        angles: Angles | None,
        attend: Attend,
    ) -> torch.Tensor:
        return self.after_norm(x, self.input_norm(x), angles, attend)

    def after_norm(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        angles: Angles | None,
        attend: Attend,
    ) -> torch.Tensor:
        """Return hidden states [T, hidden] after the layer.

        `normed` is attention's input, [T, width of the projections].
        """
        query, key, value = self.project(normed, angles)
        attended = self._out(attend(self._index, query, key, value).flatten(1))
        total = self._sum(x, self._attended_norm(attended))
        return self._sum(
            total, self._mlp_norm(self._mlp(self._post_norm(x if self._config.parallel else total)))
        )

    def _sum(self, x: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
        scale = self._config.residual_scale
        return x + (change if scale == 1 else change * scale)

    def operate(self, surgery: Surgery) -> None:
        """Sum attention's and the MLP's outputs over ranks."""
        self._out = surgery.output(self._out)
        assert isinstance(self._mlp, Mlp), "experts are not divided"
        self._mlp.down = surgery.output(self._mlp.down)

    def project(
        self, x: torch.Tensor, angles: Angles | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [T, heads, D], rotated by position."""
        c = self._config
        qkv = self._qkv(x).view(len(x), c.heads + 2 * c.kv_heads, c.head_dim)
        query, key, value = torch.split(qkv, [c.heads, c.kv_heads, c.kv_heads], dim=1)
        if self._q_norm is not None and self._k_norm is not None:
            query, key = self._normed(query, self._q_norm), self._normed(key, self._k_norm)
        if bound := c.qkv_bound:
            query, key, value = (part.clamp(-bound, bound) for part in (query, key, value))
        if angles is not None:
            query, key = rotate(query, *angles), rotate(key, *angles)
        return query, key, value

    def _normed(self, heads: torch.Tensor, norm: Norm) -> torch.Tensor:
        return norm(heads.flatten(1)).view_as(heads) if self._config.qk_norm_rows else norm(heads)
