"""P-EAGLE at work: layers of EAGLE-3's kind, and all depths in one pass.

    context   t_0 t_1 ... t_n     rows   (f_0, t_1) ... (f_{n-1}, t_n), as of EAGLE-3; the last one guesses t_{n+1}
    row n + i                     (mask_hidden, mask): guesses t_{n+1+i}; sees the rows before it, and is not kept

So a guess depends on no other guess: there is one distribution per depth. In a layer with a window a row
looks back that many positions among those of the context; a mask sees row n - 1, its anchor, in any case.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from specinfer.model.batch import Batch
from specinfer.model.published.memory import Borrowed, RowMemory, in_order
from specinfer.model.torch.layer import Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables
from specinfer.model.weights.published.peagle import PEagleSource


class PEagleModel:
    """The layers with their weights and the memory of their rows."""

    def __init__(
        self, source: PEagleSource, borrowed: Borrowed, dtype: torch.dtype, device: str, num_blocks: int
    ) -> None:
        config = source.draft_layers.config
        self._source, self._device, self._dtype = source, device, dtype
        parts = Parts(config, source.tensors, dtype, device)
        self._embedding = borrowed.embedding.to(device, dtype)
        self._head = make_linear(borrowed.head.to(device, dtype))
        self._fc, self._norm = make_linear(parts.tensor("fc.weight")), parts.norm("model.norm")
        self._layers = [Layer(index, config, parts) for index in range(config.layers)]
        self._hidden_norm = parts.norm("model.layers.0.hidden_norm")
        whole = "input_norm.weight" in source.tensors
        by_layer = "fc_norm.0.weight" in source.tensors
        self._whole_norm = parts.norm("input_norm") if whole else None
        self._layer_norms = (
            [parts.norm(f"fc_norm.{n}") for n in range(len(source.layers))] if by_layer else []
        )
        longest = replace(config, max_positions=config.max_positions + source.depths)
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(longest))
        self.memory = RowMemory(config, dtype, device, num_blocks)
        self.mask, self.depths = source.mask, source.depths
        with torch.inference_mode():
            self.mask_hidden = self._project(parts.tensor("mask_hidden")[0])

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        """Return fc of the target's states [T, layers, hidden]: [T, hidden]."""
        return self._project(in_order(states.to(self._device, self._dtype), self._source.layers))

    def _project(self, states: torch.Tensor) -> torch.Tensor:
        if self._whole_norm is not None:
            states = self._whole_norm(states)
        if self._layer_norms:
            parts = states.chunk(len(self._layer_norms), -1)
            states = torch.cat([norm(p) for norm, p in zip(self._layer_norms, parts, strict=True)], -1)
        return self._fc(states)

    def run(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows' outs [T, hidden], given their hidden states [T, hidden]."""
        token_ids, positions = (
            torch.tensor(numbers, dtype=torch.int64, device=self._device)
            for numbers in (batch.token_ids, batch.positions)
        )
        attend = self.memory.attention(batch, self._source.draft_layers.windows)
        first, *others = self._layers
        embedded, normed_hidden = F.embedding(token_ids, self._embedding), self._hidden_norm(hidden)
        normed = torch.cat([first.input_norm(embedded), normed_hidden], -1)
        residual = normed_hidden if self._source.norm_before_residual else hidden
        angles = self._cos[positions][:, None], self._sin[positions][:, None]
        x = first.behind(residual, normed, angles, attend)
        for layer in others:
            x = layer(x, angles, attend)
        return x

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""
        return self._head(self._norm(outs)).float()
