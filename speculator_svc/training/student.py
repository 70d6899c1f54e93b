"""The SSM as a trainable module: a few decoder layers over the target's frozen embeddings, small head.

Layers start as copies of target layers and the head as the target's rows of the draft vocabulary, so the
first step already knows the language; or all of it starts as an earlier SSM, which may get layers more.
Parameter names are Hugging Face's, so `specinfer.model` reads the checkpoint as it reads any Llama.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from specinfer.model.config import ModelConfig
from specinfer.model.draft_checkpoint import DraftModel
from specinfer.model.transformer import Weights, rotary_tables, rotate

_LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_OUTPUTS = ("self_attn.o_proj", "mlp.down_proj")


class LayerStart(NamedTuple):
    """What a layer starts as."""

    weights: Weights
    layer: int
    silent: bool = False
    """Whether its outputs start at zero, so that the model starts as if it were not there."""


class Student(nn.Module):
    """Maps token ids [B, T] to logits over the draft vocabulary."""

    def __init__(
        self, config: ModelConfig, weights: Weights, layers: Sequence[LayerStart], head: torch.Tensor
    ) -> None:
        """Copies `layers`, embeddings and final norm of `weights`, `head` [draft vocabulary, hidden]."""
        super().__init__()
        self.config = config
        self.register_buffer("embedding", weights["model.embed_tokens.weight"].float(), persistent=False)
        self._parameters_by_name = nn.ParameterDict()
        for place, start in enumerate(layers):
            for name in (*_LINEAR, *_MLP, *_NORMS):
                weight = start.weights[f"model.layers.{start.layer}.{name}.weight"].float()
                zero = start.silent and name in _OUTPUTS
                self._add(f"model.layers.{place}.{name}.weight", weight * 0 if zero else weight)
        self._add("model.norm.weight", weights["model.norm.weight"].float())
        self._add("lm_head.weight", head.float())
        self.layers = len(layers)
        cos, sin = rotary_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @classmethod
    def from_target(
        cls, config: ModelConfig, target: Weights, layers: Sequence[int], vocabulary: torch.Tensor
    ) -> "Student":
        """Starts as some of the target's layers, with its head's rows of the draft vocabulary."""
        head = target["model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"]
        return cls(config, target, [LayerStart(target, layer) for layer in layers], head[vocabulary])

    @classmethod
    def from_draft(
        cls, draft: DraftModel, target: Weights | None = None, inserted: Sequence[int] = ()
    ) -> "Student":
        """Goes on from a trained SSM; the `inserted` layers of `target` go before its last one, silently."""
        own = [LayerStart(draft.weights, layer) for layer in range(draft.config.layers)]
        if target is not None:
            own[-1:-1] = [LayerStart(target, layer, silent=True) for layer in inserted]
        return cls(draft.config, draft.weights, own, draft.weights["lm_head.weight"])

    def tensors(self) -> dict[str, torch.Tensor]:
        """The trained tensors under their checkpoint names."""
        return {k.replace("/", "."): v.detach() for k, v in self._parameters_by_name.items()}

    def forward(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Logits [R, draft vocabulary] at the flat positions `rows` of token ids [B, T]."""
        x = F.embedding(token_ids, self.embedding)  # type: ignore[arg-type]
        for layer in range(self.layers):
            x = x + self._attention(layer, self._norm(f"model.layers.{layer}.input_layernorm", x))
            x = x + self._mlp(layer, self._norm(f"model.layers.{layer}.post_attention_layernorm", x))
        x = x.flatten(0, 1)[rows]
        return self._linear("lm_head", self._norm("model.norm", x))

    def _attention(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        c, (batch, length, _) = self.config, x.shape
        prefix = f"model.layers.{layer}.self_attn."
        cos, sin = self.cos[:length, None], self.sin[:length, None]  # type: ignore[index]

        def heads(name: str, count: int) -> torch.Tensor:
            return self._linear(prefix + name, x).view(batch, length, count, c.head_dim)

        query = rotate(heads("q_proj", c.heads), cos, sin).transpose(1, 2)
        key = rotate(heads("k_proj", c.kv_heads), cos, sin).transpose(1, 2)
        value = heads("v_proj", c.kv_heads).transpose(1, 2)
        value, query, key = (t.to(value.dtype) for t in (value, query, key))
        # padding is on the right and attention causal, so no real token sees it
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self._linear(prefix + "o_proj", y.transpose(1, 2).flatten(2))

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        prefix = f"model.layers.{layer}.mlp."
        gate = F.silu(self._linear(prefix + "gate_proj", x))
        return self._linear(prefix + "down_proj", gate * self._linear(prefix + "up_proj", x))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self._weight(f"{name}.weight")
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.config.norm_eps)

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight(f"{name}.weight"))

    def _add(self, name: str, value: torch.Tensor) -> None:
        self._parameters_by_name[name.replace(".", "/")] = nn.Parameter(value.clone())

    def _weight(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self._parameters_by_name[name.replace(".", "/")]
        return weight
