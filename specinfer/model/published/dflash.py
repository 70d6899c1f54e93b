"""DFlash at work: a block of positions that read the target's hidden states as keys and values.

    context      t_0 ... t_{n-1} t_n     rows    f_0 ... f_{n-1}, position j
    row j        c_j = norm(fc f_j)      in every layer it is a key and a value, and no query
    block        t_n, mask, mask, ...    positions n, n + 1, ...: see all rows and, both ways, each other
    position k   head(norm(x_k)) is of the token k places behind the root, k = 1, 2, ...; or, if the root's own
                 position guesses too, k + 1 places

A layer with a window sees the rows from n - window on, and in it positions see earlier ones only (unless the
checkpoint says otherwise). Guesses of a block depend on no other guess: there is one distribution per depth,
to which DSpark adds a bias by the token before (`markov`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from specinfer.model.cache.sequence import KVSequence
from specinfer.model.published.markov import MarkovHead
from specinfer.model.published.memory import Borrowed, RowMemory, in_order, slots_of
from specinfer.model.torch.layer import Attend, Layer
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables
from specinfer.model.weights.published.dflash import BlockSource


@dataclass(frozen=True, slots=True)
class BlockTask:
    """New rows of one request, and the root of the block behind them."""

    sequence: KVSequence
    states: torch.Tensor
    """[rows, layers, hidden]"""
    root: int | None
    """None: no block is wanted."""

    @property
    def rows(self) -> int:
        """Rows of the request, the new ones included: the root's position."""
        return self.sequence.length + len(self.states)


class BlockModel:
    """The layers with their weights and the memory of their rows."""

    def __init__(
        self, source: BlockSource, borrowed: Borrowed, dtype: torch.dtype, device: str, num_blocks: int
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
        """The position of a block that guesses the token behind the root."""
        return 0 if self._source.from_root else 1

    @property
    def depths(self) -> int:
        """Tokens that a block guesses."""
        return self._source.block - self.first

    def run(self, tasks: Sequence[BlockTask]) -> list[torch.Tensor]:
        """Keep the new rows; return the hidden states [block, hidden] of every block that is wanted."""
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
        angles, own = self._angles(positions), self._angles([p for b in blocks for p in b.positions])
        for index, layer in enumerate(self._layers):
            _, key, value = layer.project(context, angles)
            self.memory.write(index, slots, key, value)
            if blocks:
                x = layer(x, own, attention[self._source.draft_layers.windows[index]])
        return list(torch.split(self._norm(x), self._source.block)) if blocks else []

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""
        return self._head(hidden).float()

    def _attention(self, blocks: Sequence["_Block"], window: int | None) -> Attend:
        """Return the attention of the blocks in a layer with this window."""
        both_ways, size = window is None or self._source.windows_see_all, self._source.block
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
    """Positions behind the rows of one request."""

    def __init__(self, task: BlockTask, size: int) -> None:
        self._task, self._size = task, size

    @property
    def positions(self) -> range:
        return range(self._task.rows, self._task.rows + self._size)

    def tokens(self, mask: int) -> list[int]:
        assert self._task.root is not None
        return [self._task.root, *[mask] * (self._size - 1)]

    def slots(self, window: int | None) -> torch.Tensor:
        """Return the slots of the rows that the block sees."""
        rows = self._task.rows
        return slots_of(self._task.sequence, 0 if window is None else max(0, rows - window), rows)


def _causal(rows: int, size: int) -> torch.Tensor:
    """Return a mask [size, rows + size] of positions that see all rows, earlier positions and themselves."""
    return torch.ones(size, rows + size, dtype=torch.bool).tril(rows)


def _attended(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return attention [T, H, D] of queries over keys and values [P, KV heads, D]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, keys, values))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)
