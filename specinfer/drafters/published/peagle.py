"""Draft with P-EAGLE: EAGLE-3's layers predict all depths in one pass.

    context   t_0 t_1 ... t_n     rows   (f_0, t_1) ... (f_{n-1}, t_n), as in EAGLE-3; the last row predicts t_{n+1}
    row n + i                     (mask_hidden, mask), temporary: sees all earlier rows, predicts t_{n+1+i}

Predictions do not depend on each other, so trees grow as with heads (`heads.py`). In a layer with a window, a row sees
only this number of context positions before it; a mask always sees row n - 1. Tensors:

    fc.weight                        [hidden, layers read * hidden]; before fc: input_norm, or fc_norm.n per layer
    layers.0.*                       as in EAGLE-3: its attention reads [2 * hidden], with hidden_norm
    layers.i.*, norm.weight          further decoder layers; the final norm
    lm_head.weight, d2t, t2d         as in EAGLE-3; absent: the target's head
    embed_tokens.weight              [V, hidden], absent: the target's embeddings
    mask_hidden                      [1, 1, layers read * hidden]: hidden states of the masks
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F

from specinfer.drafters.published.config import (
    EAGLE_LAYERS,
    PublishedConfig,
    Shapes,
    layer_shapes,
    must_be,
    read_published,
)
from specinfer.drafters.published.rows import (
    Borrowed,
    PublishedDrafter,
    PublishedSource,
    RowMemory,
    in_llama_names,
    in_order,
    read_tensors,
)
from specinfer.errors import naming
from specinfer.model.batch import Batch, Segment, flatten
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.drafting.eagle_layer import EagleTask
from specinfer.model.drafting.levels import grow_levels
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.torch.layer import Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables
from specinfer.tree import TokenTree, TreeLimits

_FIELDS = {
    "draft_vocab_size": None,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "target_hidden_size": None,
    "embed_requires_grad": True,
    EAGLE_LAYERS: None,
    "mask_token_id": None,
}


@dataclass(frozen=True, slots=True)
class PEagleSource(PublishedSource):
    algorithm: ClassVar[str] = "peagle"
    depths: int
    """Number of tokens predicted in one pass."""
    mask: int
    """Token id of the masks."""
    norm_before_residual: bool


def load_peagle(directory: Path, target_directory: Path) -> PEagleSource:
    """Read a checkpoint."""
    with naming(directory):
        config = read_published(directory, target_directory, PEagleSource.algorithm, _FIELDS)
        must_be(config.fields, {"norm_output": False})
        vocabulary, size = config.count("draft_vocab_size"), config.target.vocab_size
        hidden = config.target.hidden_size
        shapes: Shapes = {"embed_tokens.weight": (size, hidden), "lm_head.weight": (vocabulary, hidden)}
        tensors, token_ids = read_tensors(directory, _shapes(config), shapes, vocabulary, size)
        return PEagleSource(
            in_llama_names(tensors),
            token_ids,
            config.layers,
            config.read_layers(EAGLE_LAYERS),
            config.tokens,
            config.token("mask_token_id"),
            config.flag("norm_before_residual"),
        )


def _shapes(config: PublishedConfig) -> Shapes:
    hidden, read = config.target.hidden_size, len(config.read_layers(EAGLE_LAYERS))
    shapes: Shapes = {"fc.weight": (hidden, read * hidden), "mask_hidden": (1, 1, read * hidden)}
    shapes |= {f"{norm}.weight": (hidden,) for norm in ("layers.0.hidden_norm", "norm")}
    if config.flag("norm_before_fc"):
        must_be(config.fields, {"fc_norm": False})
        shapes["input_norm.weight"] = (read * hidden,)
    if config.flag("fc_norm"):
        shapes |= {f"fc_norm.{place}.weight": (hidden,) for place in range(read)}
    normed = config.layers.config.qk_norm
    for index in range(config.layers.config.layers):
        shapes |= layer_shapes(f"layers.{index}.", config.layers, normed, width=1 if index else 2)
    return shapes


class PEagleModel:
    """The layers, their weights and their cached rows."""

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
        """Map the target's states [T, layers, hidden] to [T, hidden] by fc."""
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
        first, *further_layers = self._layers
        embedded, normed_hidden = F.embedding(token_ids, self._embedding), self._hidden_norm(hidden)
        normed = torch.cat([first.input_norm(embedded), normed_hidden], -1)
        residual = normed_hidden if self._source.norm_before_residual else hidden
        angles = self._cos[positions][:, None], self._sin[positions][:, None]
        x = first.after_norm(residual, normed, angles, attend)
        for layer in further_layers:
            x = layer(x, angles, attend)
        return x

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""
        return self._head(self._norm(outs)).float()


class PEagleRunner:
    """Grow trees of P-EAGLE. Not thread-safe."""

    def __init__(self, model: PEagleModel, num_blocks: int) -> None:
        self._model, self.cache = model, PagedKVCache(num_blocks, model.memory)

    def rows_ahead(self, shape: GrowthShape, limits: TreeLimits) -> int:
        """Return the number of cache rows that a tree's masks need."""
        return max(min(limits.depth, self._model.depths) - 1, 0) if limits.nodes else 0

    @torch.inference_mode()
    def grow(
        self, tasks: Sequence[EagleTask], shape: GrowthShape, token_ids: torch.Tensor
    ) -> list[TokenTree]:
        """Read every task's new rows and grow its tree, in order.

        Rows of masks are dropped afterwards. Callers must have reserved `rows_ahead` rows.
        """
        segments, hidden = [], []
        for item in tasks:
            masks = self.rows_ahead(shape, item.task.limits)
            segments.append(
                Segment(
                    item.task.sequence,
                    item.task.delta,
                    [self._model.mask] * masks,
                    range(-1, masks - 1),
                    want_last=not item.task.limits.empty,
                )
            )
            hidden += [self._model.hidden_of(item.states), self._model.mask_hidden.expand(masks, -1)]
        batch = flatten(segments)
        outs = self._model.run(batch, torch.cat(hidden))
        logits = self._model.logits(outs[batch.logit_rows])
        trees = [
            grow_levels(item.task, list(logits[start:stop]), shape, token_ids)
            for item, (start, stop) in zip(tasks, batch.logit_spans, strict=True)
        ]
        for item in tasks:
            self.cache.append(item.task.sequence, item.task.delta)
            self.cache.trim(item.task.sequence)
        return trees


class PEagleDrafter(PublishedDrafter):
    """Draft a tree; level i has depth i's most probable tokens."""

    kind, model, runner = PEagleSource, PEagleModel, PEagleRunner
