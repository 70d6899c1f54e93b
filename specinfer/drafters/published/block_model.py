"""Layers of DFlash and DSpark: blocks attend to target hidden states.

    context      t_0 ... t_{n-1} t_n     rows    f_0 ... f_{n-1}, position j
    row j        c_j = norm(fc f_j)      key and value in every layer, never a query
    block        t_n, mask, mask, ...    positions n, n + 1, ...: see all rows and each other, in both directions
    position k   head(norm(x_k)) predicts the token k places after the root, k = 1, 2, ...; if the root's
                 position (k = 0) also predicts, the token k + 1 places after the root

A layer with a window sees only the last `window` rows; its positions see only earlier positions of the block, unless
`sliding_window_non_causal` is true. In a causal draft (JetSpec) positions of all layers see only earlier positions.
A prediction does not depend on other tokens of the block. DSpark's Markov head adds a bias by the previous token t:

    vanilla   bias = B e(t)                              e(t): row of a table of tokens, of a low rank
    gated     bias = B (sigmoid(G [h, e(t)]) * e(t))     h: hidden state of the position
    rnn       [g, c, o] = J [s, e(t), h]                 s: state of the path, zeros at first
              s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c),   bias = B tanh(o)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specinfer.drafters.published.rows import Borrowed, RowMemory, in_order, slots_of
from specinfer.model.batch import Segment
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.torch.layer import Attend, Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables

if TYPE_CHECKING:
    from specinfer.drafters.published.block import BlockSource


@dataclass(frozen=True, slots=True)
class BlockTask:
    """New rows of a request, and the root of the following block."""

    sequence: KVSequence
    states: torch.Tensor
    """[rows, layers, hidden] target states of the new rows."""
    root: int | None
    """Token id of the root; None: only store the rows."""

    @property
    def rows(self) -> int:
        """Number of rows including the new ones; also the root's position."""
        return self.sequence.length + len(self.states)


class BlockModel:
    """The layers, their weights and their cached rows."""

    def __init__(
        self, source: "BlockSource", borrowed: Borrowed, dtype: torch.dtype, device: str, num_blocks: int
    ) -> None:
        config = replace(source.draft_layers.config, qk_norm=True)
        self._source, self._device, self._dtype = source, device, dtype
        parts = Parts(config, source.tensors, dtype, device)
        self._fc, self._hidden_norm = make_linear(parts.tensor("fc.weight")), parts.norm("hidden_norm")
        self._layers = [Layer(index, config, parts) for index in range(config.layers)]
        self._norm, self._head = parts.norm("model.norm"), make_linear(borrowed.head.to(device, dtype))
        self._embedding = borrowed.embedding.to(device, dtype)
        longest = replace(config, max_positions=config.max_positions + source.block)
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(longest))
        self.memory = RowMemory(config, dtype, device, num_blocks)
        self.markov = MarkovHead(source.markov, parts) if source.markov else None

    @property
    def first(self) -> int:
        """Position in a block that predicts the first token after the root."""
        return 0 if self._source.from_root else 1

    @property
    def depths(self) -> int:
        """Number of tokens that a block predicts."""
        return self._source.block - self.first

    def run(self, tasks: Sequence[BlockTask]) -> list[torch.Tensor]:
        """Store new rows; return hidden states [block, hidden] of tasks with roots."""
        states = torch.cat([task.states for task in tasks]).to(self._device, self._dtype)
        context = self._hidden_norm(self._fc(in_order(states, self._source.layers)))
        positions = [place for task in tasks for place in range(task.sequence.length, task.rows)]
        new = [slots_of(task.sequence, task.sequence.length, task.rows) for task in tasks]
        slots = torch.cat(new).to(self._device)
        blocks = [_Block(task, self._source.block) for task in tasks if task.root is not None]
        attention = {
            window: self._attention(blocks, window) for window in {*self._source.draft_layers.windows}
        }
        x = F.embedding(
            self._tensor([token for b in blocks for token in b.tokens(self._source.mask)]), self._embedding
        )
        angles, block_angles = self._angles(positions), self._angles([p for b in blocks for p in b.positions])
        for index, layer in enumerate(self._layers):
            _, key, value = layer.project(context, angles)
            self.memory.write(index, slots, key, value)
            if blocks:
                x = layer(x, block_angles, attention[self._source.draft_layers.windows[index]])
        return list(torch.split(self._norm(x), self._source.block)) if blocks else []

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""
        return self._head(hidden).float()

    def _attention(self, blocks: Sequence["_Block"], window: int | None) -> Attend:
        """Return the blocks' attention in layers that see the last `window` rows."""
        both_ways = not self._source.causal and (window is None or self._source.windows_see_all)
        size = self._source.block
        seen = [block.slots(window).to(self._device) for block in blocks]
        masks = [None if both_ways else _causal(len(slots), size).to(self._device) for slots in seen]

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(query)
            for place, (slots, mask) in enumerate(zip(seen, masks, strict=True)):
                span = slice(place * size, (place + 1) * size)
                keys = torch.cat([self.memory.keys[layer][slots], key[span]])
                values = torch.cat([self.memory.values[layer][slots], value[span]])
                out[span] = _attended(query[span], keys, values, mask)
            return out

        return attend

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _angles(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        at = self._tensor(positions)
        return self._cos[at][:, None], self._sin[at][:, None]


class _Block:
    """A request's block: the positions after its rows."""

    def __init__(self, task: BlockTask, size: int) -> None:
        self._task, self._size = task, size

    @property
    def positions(self) -> range:
        return range(self._task.rows, self._task.rows + self._size)

    def tokens(self, mask: int) -> list[int]:
        assert self._task.root is not None
        return [self._task.root, *[mask] * (self._size - 1)]

    def slots(self, window: int | None) -> torch.Tensor:
        """Return the cache slots of the rows that the block sees."""
        rows = self._task.rows
        return slots_of(self._task.sequence, 0 if window is None else max(0, rows - window), rows)


def _causal(rows: int, size: int) -> torch.Tensor:
    """Return a causal block's attention mask [size, rows + size]."""
    return torch.ones(size, rows + size, dtype=torch.bool).tril(rows)


def _attended(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return attention [T, H, D] of queries over keys and values.

    Keys and values are [P, KV heads, D].
    """
    q, k, v = (x.transpose(0, 1)[None] for x in (query, keys, values))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


class MarkovHead:
    """A Markov head: biases of logits by the previous token."""

    def __init__(self, kind: str, parts: Parts) -> None:
        self._kind = kind
        self._table = parts.tensor("markov_head.markov_w1.weight")
        self._out = make_linear(parts.tensor("markov_head.markov_w2.weight"))
        inner = {"gated": "gate_proj", "rnn": "joint_proj"}.get(kind)
        self._inner = parts.linear("markov_head.", inner) if inner else None

    def start(self) -> torch.Tensor:
        """Return the state [1, rank] of a path without tokens."""
        return self._table.new_zeros(1, self._table.shape[1])

    def step(
        self, tokens: Sequence[int], hidden: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 biases [F, draft vocabulary] and paths' new states [F, rank].

        Args:
            tokens: [F] last token of each path.
            hidden: [hidden] hidden state of the position.
            states: [F, rank] states of the paths.
        """
        before = self._table[torch.tensor(tokens, dtype=torch.int64, device=self._table.device)]
        here = hidden.expand(len(before), -1)
        if self._inner is None:
            return self._out(before).float(), states
        if self._kind == "gated":
            gate = self._inner(torch.cat([here, before], -1)).sigmoid()
            return self._out(gate * before).float(), states
        gate, candidate, out = self._inner(torch.cat([states, before, here], -1)).chunk(3, -1)
        gate = gate.sigmoid()
        states = gate * states + (1 - gate) * candidate.tanh()
        return self._out(out.tanh()).float(), states


@dataclass(slots=True)
class BlockPath:
    """A request's block, and the Markov states of its tree's paths."""

    hidden: torch.Tensor
    """[block, hidden] hidden states of the block."""
    logits: torch.Tensor
    """[depths, draft vocabulary] logits of the predicted positions, without bias."""
    states: list[torch.Tensor]
    """States [rank] of the root, then of each tentative node."""


class MarkovPasses:
    """Computes the logits of a growing tree's levels, with each path's bias."""

    def __init__(
        self, head: MarkovHead, first: int, cache: PagedKVCache, blocks: dict[int, BlockPath]
    ) -> None:
        """Create the passes.

        Args:
            first: first position of a block that predicts a token.
            blocks: by `id` of the task's sequence.
        """
        self._head, self._first, self._cache, self._blocks = head, first, cache, blocks

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Return per segment the logits of its root's or its nodes' children."""
        return [self._logits(segment) for segment in segments]

    def _logits(self, segment: Segment) -> torch.Tensor:
        sequence = segment.sequence
        block = self._blocks.get(id(sequence))
        if block is None:
            return torch.empty(0)  # only a context was read
        if segment.delta:
            tokens, depth, states = [segment.delta[-1]], 0, self._head.start()
            for place in range(self._first):  # positions before the first prediction are part of the path
                _, states = self._head.step(tokens, block.hidden[place], states)
        else:
            self._cache.add_nodes(sequence, segment.nodes, segment.parents)
            tokens, depth = list(segment.nodes), sequence.node_depths[-1]
            states = torch.stack([block.states[parent + 1] for parent in segment.parents])
        bias, states = self._head.step(tokens, block.hidden[self._first + depth], states)
        block.states.extend(states)
        return block.logits[depth] + bias
