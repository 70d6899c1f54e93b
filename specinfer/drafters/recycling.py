"""Token recycling (arXiv 2408.08696): proposes the target's latest predictions.

    predicted       the -> cat dog mat | cat -> sat ran is | sat -> on in the
    tree after      the-+-cat-+-sat---on
    "the"               |     +-ran
                        +-dog

A matrix stores the target's most probable next tokens after every token of a verified tree, accepted or rejected. No
training is needed. All requests share the matrix, so one user's answer can become another user's *draft*: outputs
never change, but timing can reveal the answer. Every proposal is a point (not drawn).
"""

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob, TargetTopK
from specinfer.errors import SpecInferError
from specinfer.hub import resolve_model
from specinfer.text.tokenizer import Tokenizer
from specinfer.tree import TokenTree, TreeLimits
from specinfer.tree.builder import point_tree

_K = 8
"""Number of successors stored per token, as in the paper."""
_UNSEEN = -1
_PRIOR = np.array([0.4, 0.12, 0.07, 0.05, 0.04, 0.03, 0.02, 0.02])
"""Prior acceptance rate of a stored prediction, by rank."""
_TRUST = 50.0
"""Weight of the prior, as a number of predictions."""
_MEMORY = 5000.0
"""Number of later predictions that reduce an observation's weight to 1/e."""


class AdjacencyMatrix:
    """The target's latest predictions after every token, as int32."""

    def __init__(self, vocab_size: int, k: int) -> None:
        self._rows = np.full((vocab_size, k), _UNSEEN, np.int32)
        self._hits = _TRUST * _PRIOR[:k]
        self._predictions = _TRUST

    def update(self, token_ids: NDArray[np.int64], top_k: NDArray[np.int64]) -> None:
        """Store predictions [nodes, k] after tokens [nodes]; repeated tokens: the last.

        For `chances`, count the rank that each new best prediction had among the token's previous predictions.
        """
        known = token_ids < len(self._rows)  # a target may have more token ids than its tokenizer
        token_ids, top_k = token_ids[known], top_k[known]
        before = self._rows[token_ids]
        seen = before[:, 0] != _UNSEEN
        hits = (before[seen] == top_k[seen, :1]).sum(0)
        fade = (1 - 1 / _MEMORY) ** int(seen.sum())
        self._hits = fade * self._hits + hits
        self._predictions = fade * self._predictions + int(seen.sum())
        self._rows[token_ids] = top_k

    def after(self, token_id: int) -> list[int]:
        """Return the target's predictions after a token, most probable first."""
        row: list[int] = self._rows[token_id].tolist() if token_id < len(self._rows) else []
        return row if row and row[0] != _UNSEEN else []

    def chances(self) -> list[float]:
        """Return the estimated probability that a stored prediction is right, by rank."""
        shares: list[float] = (self._hits / self._predictions).tolist()
        return shares


class RecyclingDrafter:
    """Draft the most probable tree of the matrix."""

    def __init__(self, description: DrafterDescription) -> None:
        """Create an empty matrix with `target_top_k` predictions per token."""
        self.description = description
        self._matrix = AdjacencyMatrix(description.vocab_size, description.target_top_k)

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "RecyclingDrafter":
        tokenizer = Tokenizer.load(resolve_model(options.model))
        fingerprint = tokenizer.fingerprint()
        return cls(DrafterDescription("", tokenizer.vocab_size, fingerprint, target_top_k=_K))

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Record all jobs' predictions, then draft one tree per job."""
        for job in jobs:
            if job.target_top_k is not None:
                self._learn(job.target_top_k)
        chances = self._matrix.chances()
        return [best_first(self._matrix, chances, job.context[-1], job.limits) for job in jobs]

    def release(self, request_id: str) -> None:
        """Do nothing: the drafter stores no state of requests."""

    def _learn(self, top_k: TargetTopK) -> None:
        self._matrix.update(top_k.token_ids, top_k.top_k)


def best_first(matrix: AdjacencyMatrix, chances: Sequence[float], root: int, limits: TreeLimits) -> TokenTree:
    """Return the tree of the most probable nodes within the limits.

    A path's probability is the product of its tokens' `chances`, which depend on their ranks.
    """
    tokens, parents, scores, depths = [root], [-1], [1.0], [0]
    waiting: list[tuple[float, int, int, int]] = []
    """Heap of every node's next child: (-path probability, parent, token, rank)."""

    def offer(parent: int, rank: int, above: float) -> None:
        """Queue a parent's child by rank; `above`: the parent's path probability."""
        children = matrix.after(tokens[parent])
        probability = above * chances[rank] if rank < len(children) else 0.0
        narrow = limits.width is not None and rank >= limits.width
        if probability > 0 and probability >= limits.min_path_probability and not narrow:
            heapq.heappush(waiting, (-probability, parent, children[rank], rank))

    if not limits.empty:
        offer(0, 0, 1.0)
    while waiting and len(tokens) <= limits.nodes:
        negative, parent, token, rank = heapq.heappop(waiting)
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(chances[rank])
        depths.append(depths[parent] + 1)
        if rank + 1 < len(chances):
            offer(parent, rank + 1, -negative / chances[rank])
        if depths[node] < limits.depth:
            offer(node, 0, -negative)
    return point_tree(tokens, parents, scores, range(1, len(tokens)))
