"""Target without a model, run by the real runner and cache.

Its predictions depend on all visible tokens and their order: a token in a wrong slot, or one too many, changes
the text.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots, blocks_for
from specinfer.model.runner import ModelRunner
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import Sampling
from tests.support.system import VOCABULARY

_ROWS = 4093
"""Number of different predictions, a prime."""
_LONGEST = 1024
Int64 = NDArray[np.int64]


class TableTarget:
    """Target that predicts by a hash of the visible tokens."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.logits = torch.from_numpy(rng.normal(0, 3, (_ROWS, VOCABULARY)).astype(np.float32))
        self._likeliest = self.logits.argmax(1).tolist()
        self._weights = rng.integers(1, _ROWS, _LONGEST)

    def terms(self, tokens: Int64, first: int = 0) -> Int64:
        """Return what each token adds to the hash; `first` is the position of the first token."""
        return (tokens + 1) * self._weights[first : first + len(tokens)]

    def row(self, tokens: Sequence[int]) -> int:
        """Return the index of the prediction after these tokens."""
        return int(self.terms(np.array(tokens, np.int64)).sum() % _ROWS)

    def next_token(self, tokens: Sequence[int], sampling: Sampling) -> int:
        """Return the next token of plain decoding."""
        row = self.row(tokens)
        if sampling.greedy:
            return int(self._likeliest[row])
        return Noise(sampling.seed, len(tokens)).choose_by_logits(self.logits[row], sampling)

    def continued(self, prompt: Sequence[int], sampling: Sampling, count: int) -> list[int]:
        """Return the next `count` tokens of plain decoding."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(self.next_token(tokens, sampling))
        return tokens[len(prompt) :]


class TableExecutor:
    """Executor whose slots store tokens instead of keys and values."""

    name = "table"

    def __init__(self, target: TableTarget, num_blocks: int) -> None:
        self.target, self._slot_tokens = target, np.full(num_blocks * BLOCK_TOKENS, -1, np.int64)

    def run(self, batch: Batch) -> torch.Tensor:
        """Implement `Executor.run`."""
        self._slot_tokens[batch.write_slots] = batch.token_ids
        rows = np.concatenate([self._rows(part) for part in batch.rows])
        return self.target.logits[torch.from_numpy(rows[batch.logit_rows])]

    def move(self, source: Slots, target: Slots) -> None:
        """Implement `KVStorage.move`."""
        self._slot_tokens[list(target)] = self._slot_tokens[list(source)]

    def rotate(self, slots: Slots, delta: int) -> None:
        """Implement `KVStorage.rotate`."""
        raise NotImplementedError("this cache has no window")

    def _rows(self, part: AttentionRows) -> Int64:
        """Return the index of the prediction at each query of a request."""
        slots = (np.array(part.blocks)[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).ravel()
        tokens = self._slot_tokens[slots[: part.length]]
        before = np.concatenate([[0], np.cumsum(self.target.terms(tokens))])
        sums = [
            before[visible] + self.target.terms(tokens[extra], visible).sum() if extra else before[visible]
            for visible, extra in zip(part.visible, part.extra, strict=True)
        ]
        return np.array(sums, np.int64) % _ROWS


def table_runner(target: TableTarget, kv_tokens: int = 2048) -> ModelRunner:
    """Return a real runner and cache of a target."""
    num_blocks = blocks_for(kv_tokens)
    executor = TableExecutor(target, num_blocks)
    config: Any = SimpleNamespace(vocab_size=VOCABULARY, layers=0, hidden_size=0)
    return ModelRunner(config, executor, num_blocks)
