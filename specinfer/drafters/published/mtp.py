"""Draft with MTP: a decoder layer over the target's last hidden state.

    context   t_0 t_1 ... t_n     rows   (f_0, t_1) ... (f_{n-1}, t_n), f: before the target's final norm
    row j     x = proj [norm(embedding(t_{j+1})), norm(f_j)]      out = norm(layer(x)), position j
              logits = head(out), the target's head; predicts the token after t_{j+1}
    node      a row whose hidden state is its parent's out

As in EAGLE-3, rows of nodes follow the context's rows in one cache. (In training, each drafted depth has its own rows
for the whole context.) Tensors:

    mtp_layers.0.input_proj.weight              [hidden, 2 * hidden], of the embedding, then of the hidden state
    mtp_layers.0.token_layernorm.weight         norm of the embedding
    mtp_layers.0.hidden_layernorm.weight        norm of the hidden state
    mtp_layers.0.*, ....final_layernorm.weight  a decoder layer; its final norm

Embeddings and output head are the target's. A draft in the target's own checkpoint (`own_mtp.py`) may also have

    mtp_layers.0.self_attn.gate_proj.weight     [heads * D, hidden], gates of the attention's output
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F

from specinfer.drafters.eagle import EagleRunner
from specinfer.drafters.published.config import Shapes, layer_shapes, must_be, read_published, refused
from specinfer.drafters.published.rows import (
    Borrowed,
    PublishedDrafter,
    PublishedSource,
    RowMemory,
    in_llama_names,
    read_tensors,
)
from specinfer.errors import naming
from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import Slots
from specinfer.model.torch.layer import Attend, Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts, RMSNorm
from specinfer.model.torch.rotary import rotary_tables

_PREFIX = "mtp_layers."
GATE = "model.layers.0.self_attn.gate_proj.weight"
_KIND = "qwen3"
"""The only supported family; the library also has hybrid MTP layers."""


@dataclass(frozen=True, slots=True)
class MtpSource(PublishedSource):
    """An MTP draft, with the target's vocabulary and last layer."""

    algorithm: ClassVar[str] = "mtp"
    target_norm: torch.Tensor | None = None
    """Weight of the target's final norm, if rows read normed states."""


def load_mtp(directory: Path, target_directory: Path) -> MtpSource:
    """Read a checkpoint."""
    with naming(directory):
        config = read_published(
            directory, target_directory, MtpSource.algorithm, {"num_nextn_predict_layers": 1}
        )
        must_be(config.fields, {"num_nextn_predict_layers": 1})
        if config.layers.config.family != _KIND:
            raise refused("model_type", config.layers.config.family, f"must be {_KIND} for an MTP layer")
        if config.layers.windows[0] is not None:
            raise refused(
                "sliding_window", config.layers.windows[0], "must be absent: an MTP layer sees all positions"
            )
        hidden, size = config.target.hidden_size, config.target.vocab_size
        wanted: Shapes = {f"{_PREFIX}0.input_proj.weight": (hidden, 2 * hidden)}
        for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            wanted[f"{_PREFIX}0.{norm}.weight"] = (hidden,)
        wanted |= layer_shapes(f"{_PREFIX}0.", config.layers, normed_heads=True)
        tensors, token_ids = read_tensors(directory, wanted, {}, size, size)
        layers = (config.target.layers,)
        return MtpSource(in_llama_names(tensors, _PREFIX), token_ids, config.layers, layers)


class MtpModel:
    """The layer, its weights and its cached rows."""

    def __init__(
        self, source: MtpSource, borrowed: Borrowed, dtype: torch.dtype, device: str, num_blocks: int
    ) -> None:
        config = replace(source.draft_layers.config, layers=1)
        self._device, self._dtype = device, dtype
        parts = Parts(config, source.tensors, dtype, device)
        self._embedding = borrowed.embedding.to(device, dtype)
        self._head = make_linear(borrowed.head.to(device, dtype))
        prefix = "model.layers.0."
        self._proj, self._layer = (
            make_linear(parts.tensor(f"{prefix}input_proj.weight")),
            Layer(0, config, parts),
        )
        self._token_norm, self._hidden_norm, self._norm = (
            parts.norm(f"{prefix}{name}_layernorm") for name in ("token", "hidden", "final")
        )
        self._gate = make_linear(parts.tensor(GATE)) if GATE in source.tensors else None
        norm = source.target_norm
        self._target_norm = None if norm is None else RMSNorm(norm.to(device, dtype), config.norm_eps)
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(config))
        self._memory = RowMemory(config, dtype, device, num_blocks)

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        """Return the target's last states [T, 1, hidden] as [T, hidden]."""
        hidden = states.to(self._device, self._dtype).flatten(1)
        return hidden if self._target_norm is None else self._target_norm(hidden)

    def run(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows' outs [T, hidden], given their hidden states [T, hidden]."""
        token_ids, positions = (
            torch.tensor(numbers, dtype=torch.int64, device=self._device)
            for numbers in (batch.token_ids, batch.positions)
        )
        embedded = self._token_norm(F.embedding(token_ids, self._embedding))
        x = self._proj(torch.cat([embedded, self._hidden_norm(hidden)], -1))
        angles = self._cos[positions][:, None], self._sin[positions][:, None]
        attend, normed = self._memory.attention(batch, [None]), self._layer.input_norm(x)
        if self._gate is not None:
            attend = _gated(attend, self._gate(normed).sigmoid())
        return self._norm(self._layer.after_norm(x, normed, angles, attend))

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        return self._head(outs).float()

    def move(self, source: Slots, target: Slots) -> None:
        self._memory.move(source, target)

    def rotate(self, slots: Slots, delta: int) -> None:
        self._memory.rotate(slots, delta)


def _gated(attend: Attend, gates: torch.Tensor) -> Attend:
    """Return attention whose output is multiplied by gates [T, heads * D]."""

    def gated(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend(layer, query, key, value) * gates.view_as(query)

    return gated


class MtpDrafter(PublishedDrafter):
    """Draft a tree with one pass of the layer per level."""

    kind, model, runner = MtpSource, MtpModel, EagleRunner
