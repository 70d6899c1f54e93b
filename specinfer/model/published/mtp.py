"""MTP at work: one decoder layer whose rows are pairs of a hidden state and the token one ahead of it.

    context   t_0 t_1 ... t_n     rows   (f_0, t_1) ... (f_{n-1}, t_n), f: before the target's final norm
    row j     x = proj [norm(embedding(t_{j+1})), norm(f_j)]      out = norm(layer(x)), position j
              logits = head(out), the target's own head, of the token after t_{j+1}
    node      its hidden state is the out of its parent's row

As EAGLE's, rows of nodes follow those of the context, all in one cache: that is how servers run such layers.
(While they are trained each further step reads rows of its own for the whole context.)
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import Slots
from specinfer.model.published.memory import Borrowed, RowMemory
from specinfer.model.torch.layer import Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables
from specinfer.model.weights.published.mtp import MtpSource


class MtpModel:
    """The layer with its weights and the memory of its rows."""

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
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(config))
        self._memory = RowMemory(config, dtype, device, num_blocks)

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        """Return the target's last states [T, 1, hidden] as [T, hidden]."""
        return states.to(self._device, self._dtype).flatten(1)

    def run(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows' outs [T, hidden], given their hidden states [T, hidden]."""
        token_ids, positions = (
            torch.tensor(numbers, dtype=torch.int64, device=self._device)
            for numbers in (batch.token_ids, batch.positions)
        )
        embedded = self._token_norm(F.embedding(token_ids, self._embedding))
        x = self._proj(torch.cat([embedded, self._hidden_norm(hidden)], -1))
        angles = self._cos[positions][:, None], self._sin[positions][:, None]
        return self._norm(self._layer(x, angles, self._memory.attention(batch, [None])))

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, V] in float32."""
        return self._head(outs).float()

    def move(self, source: Slots, target: Slots) -> None:
        """Fail: no node of a tree is kept, so none moves."""
        self._memory.move(source, target)

    def rotate(self, slots: Slots, delta: int) -> None:
        """Fail: the cache has no window, so nothing turns."""
        self._memory.rotate(slots, delta)
