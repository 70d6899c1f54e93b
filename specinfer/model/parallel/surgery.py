"""Wrappers of a decoder's parts when ranks divide its weights.

After Megatron-LM, arXiv 1909.08053, section 3.
"""

import torch

from specinfer.model.parallel.ranks import Ranks
from specinfer.model.torch.linear import Linear
from specinfer.model.torch.surgery import Surgery


class SummedLinear:
    """A row-parallel layer: each rank multiplies its part of the inputs, the sum of all is the output."""

    def __init__(self, inner: Linear, ranks: Ranks) -> None:
        self._inner, self._ranks = inner, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out] from this rank's part [T, in / ranks]."""
        return self._ranks.add(self._inner(x))


class SharedLookup:
    """Embeddings of which each rank has those of some tokens; for the others it adds zeros."""

    def __init__(self, inner: Linear, ranks: Ranks, tokens: range) -> None:
        self._inner, self._ranks, self._tokens = inner, ranks, tokens

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of token ids x [T]."""
        local = x - self._tokens.start
        absent = (local < 0) | (local >= len(self._tokens))
        found = self._inner(local.masked_fill(absent, 0))
        return self._ranks.add(found.masked_fill(absent[:, None], 0.0))


class GatheredHead:
    """A vocabulary-parallel head: the stage's first rank gets the logits of all tokens."""

    def __init__(self, inner: Linear, ranks: Ranks) -> None:
        self._inner, self._ranks = inner, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [R, V] at the stage's first rank, [R, V / ranks] at the others."""
        return self._ranks.concatenated(self._inner(x))


class TensorParallel(Surgery):
    """Divides every layer of a decoder among the ranks of its stage."""

    def __init__(self, ranks: Ranks, vocab_size: int) -> None:
        self._ranks, self._tokens = ranks, ranks.place.share(vocab_size)

    def embedding(self, lookup: Linear) -> Linear:
        """Look up token ids [T] in this rank's rows of the embeddings."""
        return SharedLookup(lookup, self._ranks, self._tokens)

    def output(self, linear: Linear) -> Linear:
        """Sum the ranks' outputs of a layer whose inputs are divided."""
        return SummedLinear(linear, self._ranks)

    def head(self, linear: Linear) -> Linear:
        """Join the ranks' logits of their parts of the vocabulary."""
        return GatheredHead(linear, self._ranks)
