"""Computes drafts' decoder layers over hidden states of the target, in torch operations.

    context   t_0 t_1 ... t_n     rows   (f_0, t_1) ... (f_{n-1}, t_n), row j at position j
    EAGLE     hidden_j = fc f_j   x = hidden_j, attention reads [norm(embedding(t_{j+1})), hidden_norm(hidden_j)]
    MTP       hidden_j = f_j      x = proj [norm(embedding(t_{j+1})), norm(hidden_j)]
    node      a row whose hidden state is its parent's out; a mask's is a learnt one (P-EAGLE)
    block     (DFlash) row j gives only keys and values, of hidden_norm(fc f_j); t_n and masks follow the rows as
              positions n, n + 1, ..., and their embeddings are x

`logits` predict the token after a row's. The last context token, the tree's root, is the token of the last row, so
the target's hidden state of the root is not needed. Rows see:

    path      context rows before them, and nodes on their own path
    window    of these only the last ones; the last context row in any case
    block     all context rows, and the block's positions up to their own
    window    a block's positions see the last context rows before the block
    both ways a block's positions see all its positions

The compiled EAGLE layer (`specinfer.model.native.eagle_layer`) is tested against this file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.drafting.task import GrowthTask
from specinfer.model.torch.attention import ReferenceAttention, RowsPlan
from specinfer.model.torch.layer import Attend, Layer
from specinfer.model.torch.linear import Linear, make_linear
from specinfer.model.torch.parts import Norm, Parts, RMSNorm, soft_capped
from specinfer.model.torch.rotary import Angles, rotary_tables
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING

_PROJ, _GATE = "input_proj", "model.layers.0.self_attn.gate_proj"


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """Configuration and tensors of a draft's layers."""

    config: ModelConfig
    tensors: Mapping[str, torch.Tensor]
    """The embeddings, `fc` or `input_proj`, norms, `lm_head`, the modules of `model.layers`."""
    four_bits: bool = False
    """True if the file has matrices in 4 bits; they are served so by default."""
    norm_before_residual: bool = False
    """True if the first layer's residual is the normed hidden state."""
    head: torch.Tensor | None = None
    """[draft vocabulary, hidden] output head; None: `lm_head` of `tensors`."""
    layers: tuple[int, ...] = ()
    """Target layers of the hidden states, in the order that `fc` reads; empty: ascending."""
    windows: tuple[int | None, ...] = (None,)
    """Number of earlier positions that each layer sees; None: all."""
    ahead: int = 0
    """Number of temporary rows that predict all depths at once; 0: none."""
    mask: int = 0
    """Token id of temporary rows."""
    both_ways: tuple[bool, ...] = ()
    """By layer, whether a block's positions see later ones; empty: the draft has no blocks."""
    from_root: bool = False
    """True if a block's first position, the root's, also predicts a token."""
    markov: str = ""
    """Kind of a block's Markov head; empty: none."""
    target_norm: torch.Tensor | None = None
    """Weight of the target's final norm, if rows read normed states."""


@dataclass(frozen=True, slots=True)
class RowsTask:
    """A growth task, and the target's hidden states for its new rows."""

    task: GrowthTask
    states: torch.Tensor
    """[len(delta), layers, hidden] states before the delta's tokens."""


class DroppedRows:
    """Storage of rows that a drafter drops after each tree."""

    def move(self, source: Slots, target: Slots) -> None:
        raise NotImplementedError("move: a drafter drops all nodes of a tree")

    def rotate(self, slots: Slots, delta: int) -> None:
        raise NotImplementedError("rotate: a drafter's cache has no window (kv_window)")


class DraftStack(DroppedRows):
    """A draft's layers in torch operations, with their own KV cache."""

    def __init__(self, weights: DraftWeights, dtype: torch.dtype, device: str, num_blocks: int) -> None:
        config, names, block = weights.config, weights.tensors, bool(weights.both_ways)
        self._device, self._dtype = device, dtype
        parts = Parts(config, names, dtype, device)

        def linear(name: str, wanted: bool) -> Linear | None:
            return make_linear(parts.tensor(f"{name}.weight")) if wanted else None

        def norm(name: str, wanted: bool) -> Norm:
            return parts.norm(name) if wanted else _unchanged

        self._embedding = parts.tensor(EMBEDDING)
        self.plan = replace(weights, tensors={}, head=None)
        head = parts.tensor("lm_head.weight") if weights.head is None else weights.head.to(device, dtype)
        self._head, self._norm = make_linear(head), parts.norm("model.norm")
        self._layers = [Layer(index, config, parts) for index in range(config.layers)]
        self._proj = linear(_PROJ, f"{_PROJ}.weight" in names)
        self._gate = linear(_GATE, f"{_GATE}.weight" in names)
        self._fc = linear("fc", self._proj is None)
        read = ("input_norm", *(f"fc_norm.{place}" for place in range(len(weights.layers))))
        self._read_norms = [parts.norm(name) for name in read if f"{name}.weight" in names]
        self._hidden_norm, self._state_norm = parts.norm("hidden_norm"), _unchanged
        if weights.target_norm is not None:
            self._state_norm = RMSNorm(weights.target_norm.to(device, dtype), config.norm_eps)
        elif block:
            self._state_norm = self._hidden_norm
        self._token_norm = norm("token_norm", self._proj is not None)
        self._outs_are_normed = block or self._proj is not None
        self.markov = MarkovHead(weights.markov, parts) if weights.markov else None
        longest = replace(config, max_positions=config.max_positions + weights.ahead)
        self._cos, self._sin = (table.to(device, dtype) for table in rotary_tables(longest))
        self._attention = ReferenceAttention(device)
        shape = (num_blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self._keys, self._values = (
            [torch.zeros(shape, dtype=dtype, device=device) for _ in self._layers] for _ in range(2)
        )
        self._mask_states = parts.tensor("mask_hidden")[0] if "mask_hidden" in names else None

    def hidden_of(self, states: torch.Tensor) -> torch.Tensor:
        """Map states [T, layers, hidden] of ascending layers to rows' states [T, hidden]."""
        order = self.plan.layers
        if order and list(order) != sorted(order):
            states = states[:, [sorted(order).index(layer) for layer in order]]
        return self._row_states(states.to(self._device, self._dtype).flatten(1))

    def hidden_of_masks(self, count: int) -> torch.Tensor:
        """Return the hidden states [count, hidden] of masks, which P-EAGLE has learnt."""
        assert self._mask_states is not None, "the draft has no masks"
        return self._row_states(self._mask_states).expand(count, -1)

    def _row_states(self, states: torch.Tensor) -> torch.Tensor:
        if norms := self._read_norms:
            parts = states.chunk(len(norms), -1)
            states = torch.cat([norm(part) for norm, part in zip(norms, parts, strict=True)], -1)
        return self._state_norm(states if self._fc is None else self._fc(states))

    def store(self, batch: Batch, hidden: torch.Tensor) -> None:
        """Store a block's context rows, given their hidden states [T, hidden]."""
        slots, angles = self._numbers(batch.write_slots), self._angles(batch)
        for index, layer in enumerate(self._layers):
            _, key, value = layer.project(hidden, angles)
            self._write(index, slots, key, value)

    def run(self, batch: Batch, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows' outs [T, hidden].

        `hidden`: hidden states [T, hidden] of the rows; None for a block.
        """
        embedded = F.embedding(self._numbers(batch.token_ids), self._embedding)
        angles, attend = self._angles(batch), self._attend(batch)
        first, *further_layers = self._layers
        if hidden is None:
            x = first(embedded, angles, attend)
        elif self._proj is None:
            normed = self._hidden_norm(hidden)
            both = torch.cat([first.input_norm(embedded), normed], -1)
            x = first.after_norm(normed if self.plan.norm_before_residual else hidden, both, angles, attend)
        else:
            x = self._proj(torch.cat([self._token_norm(embedded), self._hidden_norm(hidden)], -1))
            normed = first.input_norm(x)
            x = first.after_norm(x, normed, angles, self._gated(attend, normed))
        for layer in further_layers:
            x = layer(x, angles, attend)
        return self._norm(x) if self._outs_are_normed else x

    def logits(self, outs: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, draft vocabulary] in float32."""
        logits = self._head(outs if self._outs_are_normed else self._norm(outs)).float()
        return soft_capped(logits, self.plan.config.logit_cap)

    def _gated(self, attend: Attend, normed: torch.Tensor) -> Attend:
        """Return attention whose output is multiplied by the draft's gates, if it has any."""
        if self._gate is None:
            return attend
        gates = self._gate(normed).sigmoid()
        return lambda *arguments: (out := attend(*arguments)) * gates.view_as(out)

    def _attend(self, batch: Batch) -> Attend:
        """Return a batch's attention, which stores its rows."""
        slots, windows = self._numbers(batch.write_slots), self.plan.windows
        sights = [*zip(windows, self.plan.both_ways or (None,) * len(windows), strict=True)]
        plans = {sight: self._attention_plan(batch, *sight) for sight in set(sights)}

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self._write(layer, slots, key, value)
            keys, values, config = self._keys[layer], self._values[layer], self.plan.config
            plan, scale, cap = plans[sights[layer]], config.score_scale, config.score_cap
            return self._attention.attend(query, keys, values, plan, scale, cap)

        return attend

    def _attention_plan(self, batch: Batch, window: int | None, both_ways: bool | None) -> list[RowsPlan]:
        """Return what rows see; `both_ways` is None without blocks."""
        if both_ways is not None:  # a block's positions all have the window of the position before the root
            before = [batch.positions[part.start] - 1 for part in batch.rows for _ in part.visible]
            rows = [_all_seen(part) if both_ways else part for part in batch.rows]
            batch = replace(batch, positions=before, rows=rows)
        plans = self._attention.plan(batch, window=window)
        return plans if window is None else [plan.without_unseen() for plan in plans]

    def _write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        self._keys[layer].index_copy_(0, slots, key)
        self._values[layer].index_copy_(0, slots, value)

    def _numbers(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _angles(self, batch: Batch) -> Angles:
        positions = self._numbers(batch.positions)
        return self._cos[positions][:, None], self._sin[positions][:, None]


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def _all_seen(part: AttentionRows) -> AttentionRows:
    """Return the rows of a block whose positions see each other."""
    return replace(part, extra=[[*range(part.visible[0], part.length)]] * len(part.extra))


class MarkovHead:
    """A block's Markov head (DSpark): biases of logits by the previous token t.

    vanilla   bias = B e(t)                              e(t): row of a table of tokens, of a low rank
    gated     bias = B (sigmoid(G [h, e(t)]) * e(t))     h: hidden state of the position
    rnn       [g, c, o] = J [s, e(t), h]                 s: state of the path, zeros at first
              s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c),   bias = B tanh(o)
    """

    def __init__(self, kind: str, parts: Parts) -> None:
        self._kind = kind
        self._table = parts.tensor("markov_head.markov_w1.weight")
        self._out = make_linear(parts.tensor("markov_head.markov_w2.weight"))
        inner = {"gated": "gate_proj", "rnn": "joint_proj"}.get(kind)
        self._inner = parts.linear("markov_head.", inner) if inner else None

    def start(self, paths: int) -> torch.Tensor:
        """Return the states [paths, rank] of paths without tokens."""
        return self._table.new_zeros(paths, self._table.shape[1])

    def step(
        self, tokens: torch.Tensor, hidden: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 biases [F, draft vocabulary] and paths' new states [F, rank].

        Args:
            tokens: [F] last token of each path.
            hidden: [F, hidden] hidden states of the paths' positions.
            states: [F, rank] states of the paths.
        """
        before = self._table[tokens.to(self._table.device)]
        if self._inner is None:
            return self._out(before).float(), states
        if self._kind == "gated":
            gate = self._inner(torch.cat([hidden, before], -1)).sigmoid()
            return self._out(gate * before).float(), states
        gate, candidate, out = self._inner(torch.cat([states, before, hidden], -1)).chunk(3, -1)
        gate = gate.sigmoid()
        states = gate * states + (1 - gate) * candidate.tanh()
        return self._out(out.tanh()).float(), states
