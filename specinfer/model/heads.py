"""Heads over the target's last hidden state (Medusa, blockwise parallel decoding): logits, and trees.

    context      t_0 ... t_{n-1} t_n          h = norm(f_{n-1}): the newest hidden state that there is
    target       head(h) chose t_n            the tree's root
    medusa       out_i = h + SiLU(A_i h + a_i)                        logits_i = B_i out_i
    blockwise    out_i = h + (D ReLU(C h + c) + d)_i                  logits_i = head(out_i)

logits_i are of the token i places behind the root, i = 1 ... k, whatever lies in between. One row, read once,
gives the whole tree; there is no cache.

Heads with a Markov head know the token before each node, x, the root at first:

    edge logits of a node's children      logits_i + W2 W1 e(x) / rms(e(x))       e: the target's embeddings

So each level of nodes is a product of its own, [nodes, rank] by [rank, draft vocabulary].
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from specinfer.errors import SettingError
from specinfer.model.drafting.levels import grow_edges, grow_levels
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.options import DTYPES, RunnerOptions, check_numbers, check_options
from specinfer.model.torch.linear import Linear
from specinfer.model.torch.parts import Parts
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING
from specinfer.model.weights.heads_checkpoint import MARKOV_IN, MARKOV_OUT, BlockwiseSource, HeadsSource
from specinfer.tree import TokenTree

_NORM, _HEAD = "model.norm", "lm_head"


class MarkovBias:
    """Low-rank bias of logits by the token before."""

    def __init__(self, parts: Parts) -> None:
        self._embeddings = parts.tensor(EMBEDDING)
        self._inner, self._outer = parts.linear("", MARKOV_IN), parts.linear("", MARKOV_OUT)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the biases [N, draft vocabulary] behind N tokens of the target."""
        embedded = F.embedding(tokens, self._embeddings)
        return self._outer(self._inner(F.rms_norm(embedded, embedded.shape[-1:])))


class Heads:
    """The heads, over any tensors: those of a checkpoint, or parameters that are trained."""

    def __init__(
        self, kind: type[HeadsSource], count: int, config: ModelConfig, parts: Parts, markov: bool = False
    ) -> None:
        """Take the target's `config`; `parts` consist of the checkpoint's tensors and `tensors_of_target`."""
        self.markov = MarkovBias(parts) if markov else None
        self._norm, self._shape = parts.norm(_NORM), (-1, count, config.hidden_size)
        self._second: Linear | None = None
        if issubclass(kind, BlockwiseSource):
            self._first, self._second = parts.linear("", "in_proj"), parts.linear("", "out_proj")
            self._heads = [parts.linear("", _HEAD)]
        else:
            self._first = parts.linear("", *(f"{i}.0.linear" for i in range(count)))
            self._heads = [parts.linear("", f"{i}.1") for i in range(count)]

    def outs(self, states: torch.Tensor) -> torch.Tensor:
        """Return outs [R, k, hidden] of the target's hidden states [R, hidden], before its final norm."""
        h = self._norm(states)
        inner = self._first(h)
        added = F.silu(inner) if self._second is None else self._second(F.relu(inner))
        return h[:, None] + added.view(self._shape)

    def logits(self, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the logits of each head [R_i, draft vocabulary], given its outs [R_i, hidden]."""
        if self._second is None:
            return [head(rows) for head, rows in zip(self._heads, outs, strict=True)]
        # shared: its weights, the most of what is read, are read once
        together = self._heads[0](torch.cat(list(outs)))
        return list(torch.split(together, [len(rows) for rows in outs]))


def tensors_of_target(
    kind: type[HeadsSource],
    config: ModelConfig,
    target: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    markov: bool = False,
) -> dict[str, torch.Tensor]:
    """Return the target's frozen tensors that heads read: its final norm, its output head if shared.

    A Markov head reads its embeddings.
    """
    norm = ("weight", "bias") if config.layer_norm else ("weight",)
    found = {f"{_NORM}.{part}": target[f"{_NORM}.{part}"] for part in norm}
    if markov:
        found[EMBEDDING] = target[EMBEDDING]
    if issubclass(kind, BlockwiseSource):
        found[f"{_HEAD}.weight"] = output_head(config, target)[token_ids]
    return found


def output_head(config: ModelConfig, target: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the target's output head [V, hidden]."""
    return target[EMBEDDING if config.tied_embeddings else f"{_HEAD}.weight"]


class HeadsRunner:
    """Grows trees for a batch. Not thread-safe."""

    def __init__(self, heads: Heads, dtype: torch.dtype, device: str) -> None:
        self._heads, self._dtype, self._device = heads, dtype, device

    @classmethod
    def build(
        cls,
        source: HeadsSource,
        config: ModelConfig,
        target: Mapping[str, torch.Tensor],
        options: RunnerOptions,
    ) -> "HeadsRunner":
        """Combine the heads with the parts of their target.

        Raises:
            SettingError: if an option is bad, or if the chosen executor cannot run heads.
        """
        check_options(options)
        if options.executor not in ("auto", "torch"):
            raise SettingError("executor", options.executor, "heads run in torch")
        check_numbers(options, "heads are held")
        dtype = DTYPES[options.dtype]
        kind, markov = type(source), source.markov
        tensors = {**source.tensors, **tensors_of_target(kind, config, target, source.token_ids, markov)}
        parts = Parts(config, tensors, dtype, options.device)
        return cls(Heads(kind, source.count, config, parts, markov), dtype, options.device)

    @property
    def knows_paths(self) -> bool:
        """True if the tokens before a node count: the heads have a Markov head."""
        return self._heads.markov is not None

    @torch.inference_mode()
    def grow(
        self,
        tasks: Sequence[GrowthTask],
        states: torch.Tensor,
        shape: GrowthShape,
        token_ids: torch.Tensor,
    ) -> list[TokenTree]:
        """Return one tree per task, in order; `states` [tasks, hidden] are the newest of each."""
        outs = self._heads.outs(states.to(self._device, self._dtype))
        levels = [rows.float() for rows in self._heads.logits(outs.unbind(1))]
        markov = self._heads.markov
        if markov is not None:
            return grow_edges(
                tasks, levels, lambda ids: markov(ids.to(self._device)).float(), shape, token_ids
            )
        return [
            grow_levels(task, [rows[i] for rows in levels], shape, token_ids) for i, task in enumerate(tasks)
        ]
