"""DSpark's Markov head: the logits of a position get a bias by the token before it, so heads know their path.

    vanilla   bias = B e(t)                              e(t): row of a table of tokens, of a low rank
    gated     bias = B (sigmoid(G [h, e(t)]) * e(t))     h: hidden state of the position
    rnn       [g, c, o] = J [s, e(t), h]                 s: state of the path, zeros at first
              s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c),   bias = B tanh(o)

Trees grow by the rules of `ReferenceGrowth`, each node with the logits of its own path.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specinfer.model.batch import Segment
from specinfer.model.cache.kv_cache import PagedKVCache
from specinfer.model.torch.linear import make_linear
from specinfer.model.torch.parts import Parts

_EMPTY = -1
"""Place of the root, as parent of the first nodes."""


class MarkovHead:
    """The head with its weights."""

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
        """Return biases [F, draft vocabulary] in float32, and the paths' new states [F, rank].

        Args:
            tokens: [F] the token before the position, of each path.
            hidden: [hidden] of the position.
            states: [F, rank] of the paths so far.
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
    """A block of one request, and the states of the paths in its tree."""

    hidden: torch.Tensor
    """[block, hidden]"""
    logits: torch.Tensor
    """[depths, draft vocabulary] of the positions that guess, without bias."""
    states: list[torch.Tensor]
    """By tentative node, the state [rank] behind its token's own guess; that of the root first."""


class MarkovPasses:
    """Passes of one growth: the logits of a level are those of its position, with each path's bias."""

    def __init__(
        self, head: MarkovHead, first: int, cache: PagedKVCache, blocks: dict[int, BlockPath]
    ) -> None:
        """Take the blocks by the identity of their task's sequence; `first` is the first position that guesses."""
        self._head, self._first, self._cache, self._blocks = head, first, cache, blocks

    def forward(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Return per segment the logits behind its root, or behind its nodes."""
        return [self._logits(segment) for segment in segments]

    def _logits(self, segment: Segment) -> torch.Tensor:
        sequence = segment.sequence
        block = self._blocks.get(id(sequence))
        if block is None:
            return torch.empty(0)  # no tree is wanted
        if segment.delta:
            tokens, depth, states = [segment.delta[-1]], 0, self._head.start()
            for place in range(self._first):  # the root's position guesses nothing, but is one of the path
                _, states = self._head.step(tokens, block.hidden[place], states)
        else:
            self._cache.add_nodes(sequence, segment.nodes, segment.parents)
            tokens, depth = list(segment.nodes), sequence.node_depths[-1]
            states = torch.stack([block.states[parent + 1] for parent in segment.parents])
        bias, states = self._head.step(tokens, block.hidden[self._first + depth], states)
        block.states.extend(states)
        return block.logits[depth] + bias
