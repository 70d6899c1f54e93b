"""Layers and checkpoints of heads: Medusa and blockwise parallel decoding.

    context      t_0 ... t_{n-1} t_n          h = norm(f_{n-1}): the newest hidden state
    target       head(h) chose t_n            the tree's root
    medusa       out_i = h + SiLU(A_i h + a_i)                        logits_i = B_i out_i
    blockwise    out_i = h + (D ReLU(C h + c) + d)_i                  logits_i = head(out_i)

logits_i predict the token i places after the root, i = 1 ... k, independent of the tokens in between. One row gives
the whole tree, without a cache. With a Markov head, logits also depend on x, the token before (at first the root): each
level of nodes takes a product of [nodes, rank] by [rank, draft vocabulary]:

    edge logits of a node's children      logits_i + W2 W1 e(x) / rms(e(x))       e: the target's embeddings

Tensors of Medusa, under its authors' names, i = 0 ... k - 1:

    i.0.linear.weight, i.0.linear.bias    [hidden, hidden]             of the residual block
    i.1.weight                            [draft vocabulary, hidden]   its output head

Tensors of blockwise parallel decoding, without the output head, which is the target's:

    in_proj.weight, in_proj.bias          [k * hidden, hidden]         one feed-forward layer for all heads
    out_proj.weight, out_proj.bias        [k * hidden, k * hidden]     rows of head after head

Tensors of a Markov head:

    markov.in.weight                      [rank, hidden]               reads the target's embedding of x
    markov.out.weight                     [draft vocabulary, rank]

Both kinds have `d2t` and `t2d` like EAGLE-3 (`published/eagle3.py`); if absent, draft ids are target ids. `config.json`
has `speculators_model_type: medusa` or `blockwise`, and `num_heads`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F

from specinfer.errors import IncompatibleError, naming
from specinfer.model.torch.linear import Linear
from specinfer.model.torch.parts import Parts, soft_capped
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import (
    check_shapes,
    checked_config,
    checked_tokens,
    own_tensors,
    save_checkpoint,
)
from specinfer.model.weights.families import EMBEDDING

_COUNT = "num_heads"
MARKOV_IN, MARKOV_OUT = "markov.in", "markov.out"


@dataclass(frozen=True, slots=True)
class HeadsSource:
    """Heads of Medusa or of blockwise parallel decoding."""

    algorithm: ClassVar[str]
    architecture: ClassVar[str]
    tensors: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token, ascending."""
    count: int

    @property
    def markov(self) -> bool:
        return f"{MARKOV_OUT}.weight" in self.tensors


class MedusaSource(HeadsSource):
    """Heads of Medusa: each has a residual block and an output head."""

    algorithm = "medusa"
    architecture = "MedusaSpeculator"


class BlockwiseSource(HeadsSource):
    """Heads of blockwise parallel decoding: one feed-forward layer, the target's output head."""

    algorithm = "blockwise"
    architecture = "BlockwiseSpeculator"


H = TypeVar("H", bound=HeadsSource)


def save_heads(
    directory: Path, heads: HeadsSource, target_directory: Path, target_name: str, trained: Mapping[str, Any]
) -> None:
    """Write a checkpoint; `trained`: record of command, data and results."""
    fields = {"architectures": [heads.architecture], _COUNT: heads.count, "trained": dict(trained)}
    save_checkpoint(
        directory,
        heads.algorithm,
        heads.tensors,
        heads.token_ids,
        fields,
        target_directory,
        target_name,
        {"num_hidden_layers": 0},
    )


def load_heads(kind: type[H], directory: Path, target_directory: Path) -> H:
    """Read a checkpoint."""
    config = checked_config(directory, target_directory, kind.algorithm)
    tensors, token_ids = own_tensors(directory)
    count = config.get(_COUNT)
    if not isinstance(count, int) or count < 1:
        raise IncompatibleError(f"{directory}: {_COUNT} = {count!r} must be a positive whole number")
    target = load_config(target_directory)
    if token_ids is None:
        token_ids = torch.arange(target.vocab_size)
    with naming(directory):
        heads = kind(tensors, checked_tokens(token_ids, len(token_ids), target.vocab_size), count)
        check_shapes(tensors, _shapes(heads, target.hidden_size))
    return heads


def _shapes(heads: HeadsSource, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors' names and shapes."""
    drafted, wide = len(heads.token_ids), heads.count * hidden
    shapes: dict[str, tuple[int, ...]] = {"in_proj.weight": (wide, hidden), "out_proj.weight": (wide, wide)}
    shapes |= {"in_proj.bias": (wide,), "out_proj.bias": (wide,)}
    for head in range(heads.count):
        shapes |= {f"{head}.0.linear.weight": (hidden, hidden), f"{head}.0.linear.bias": (hidden,)}
        shapes[f"{head}.1.weight"] = (drafted, hidden)
    rank = len(heads.tensors[f"{MARKOV_OUT}.weight"][0]) if heads.markov else 0
    return shapes | {f"{MARKOV_IN}.weight": (rank, hidden), f"{MARKOV_OUT}.weight": (drafted, rank)}


_NORM, _HEAD = "model.norm", "lm_head"


load_medusa = partial(load_heads, MedusaSource)
load_blockwise = partial(load_heads, BlockwiseSource)


class MarkovBias:
    """Markov head: low-rank bias of logits by the previous token."""

    def __init__(self, parts: Parts) -> None:
        self._embeddings = parts.tensor(EMBEDDING)
        self._inner, self._outer = parts.linear("", MARKOV_IN), parts.linear("", MARKOV_OUT)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the biases [N, draft vocabulary] after N target tokens."""
        embedded = F.embedding(tokens, self._embeddings)
        return self._outer(self._inner(F.rms_norm(embedded, embedded.shape[-1:])))


class Heads:
    """Computes heads' logits, with a checkpoint's tensors or with trained parameters."""

    def __init__(
        self, kind: type[HeadsSource], count: int, config: ModelConfig, parts: Parts, markov: bool = False
    ) -> None:
        """Create the heads; `parts` has their tensors and those of `tensors_of_target`."""
        self.markov = MarkovBias(parts) if markov else None
        self._norm, self._shape = parts.norm(_NORM), (-1, count, config.hidden_size)
        self._cap = config.logit_cap
        self._second: Linear | None = None
        if issubclass(kind, BlockwiseSource):
            self._first, self._second = parts.linear("", "in_proj"), parts.linear("", "out_proj")
            self._heads = [parts.linear("", _HEAD)]
        else:
            self._first = parts.linear("", *(f"{i}.0.linear" for i in range(count)))
            self._heads = [parts.linear("", f"{i}.1") for i in range(count)]

    def outs(self, states: torch.Tensor) -> torch.Tensor:
        """Map hidden states [R, hidden] to outs [R, k, hidden].

        The input is the target's hidden state before the final norm.
        """
        h = self._norm(states)
        inner = self._first(h)
        added = F.silu(inner) if self._second is None else self._second(F.relu(inner))
        return h[:, None] + added.view(self._shape)

    def logits(self, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each head's logits [R_i, draft vocabulary] from its outs [R_i, hidden]."""
        if self._second is None:
            return [soft_capped(head(rows), self._cap) for head, rows in zip(self._heads, outs, strict=True)]
        # one product, so that the shared head's weights are read once
        together = soft_capped(self._heads[0](torch.cat(list(outs))), self._cap)
        return list(torch.split(together, [len(rows) for rows in outs]))


def tensors_of_target(
    kind: type[HeadsSource],
    config: ModelConfig,
    target: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    markov: bool = False,
) -> dict[str, torch.Tensor]:
    """Return the target's tensors that the heads use.

    The heads use the final norm, the output head if shared, and the embeddings for a Markov head.
    """
    norm = ("weight", "bias") if config.layer_norm else ("weight",)
    tensors = {f"{_NORM}.{part}": target[f"{_NORM}.{part}"] for part in norm}
    if markov:
        tensors[EMBEDDING] = target[EMBEDDING]
    if issubclass(kind, BlockwiseSource):
        tensors[f"{_HEAD}.weight"] = output_head(config, target, token_ids)
    return tensors


def output_head(
    config: ModelConfig, target: Mapping[str, torch.Tensor], token_ids: torch.Tensor
) -> torch.Tensor:
    """Return the rows [n, hidden] of the target's output head for some tokens.

    They contain the target's factor on logits.
    """
    rows = target[EMBEDDING if config.tied_embeddings else f"{_HEAD}.weight"][token_ids]
    return rows if config.logit_scale == 1 else rows * config.logit_scale
