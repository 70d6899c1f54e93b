"""A deterministic model: a hash of the context gives the logits, so the right text of each request is known.

The executor stores a token in each cache slot and hashes the tokens that a row sees, so a wrong position, a wrong
mask or a cache that was not compacted gives another text.
"""

import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.runner import ModelRunner
from specinfer.text.constraints.compiler import Compiler
from tests.support.system import VOCABULARY, ascii_tokenizer
from tests.support.tiny_models import runner_of, tiny_transformers

_TABLE = np.random.default_rng(5).normal(0.0, 2.0, (1024, VOCABULARY)).astype(np.float32)
_TABLE[:, :3] = -10.0
"""Special tokens and the end of text are rare."""
EOS = 1
"""End of text; unlike that of other tests it is no character."""


class HashExecutor:
    """Executor of the hash model."""

    name = "hash"

    def __init__(self, slots: int) -> None:
        self._tokens = np.full(slots, -1, np.int32)

    def run(self, batch: Batch) -> torch.Tensor:
        """Return the logits [R, V] of `batch.logit_rows`."""
        self._tokens[batch.write_slots] = batch.token_ids
        wanted, hashes = set(batch.logit_rows), dict[int, int]()
        for part in batch.rows:
            blocks = np.asarray(part.blocks, np.int64)
            for at in range(part.start, part.stop):
                if at in wanted:
                    row = at - part.start
                    positions = np.asarray([*range(part.visible[row]), *part.extra[row]], np.int64)
                    slots = blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
                    hashes[at] = row_of(self._tokens[slots])
        return torch.from_numpy(_TABLE[[hashes[at] for at in batch.logit_rows]])

    def move(self, source: Slots, target: Slots) -> None:
        """Copy tokens between slots."""
        self._tokens[list(target)] = self._tokens[list(source)]

    def rotate(self, slots: Slots, delta: int) -> None:
        """Do nothing: tokens have no angles."""


def row_of(context: Any) -> int:
    """Return the row of the table of logits after a context."""
    return zlib.crc32(np.asarray(context, np.int32).tobytes(), 17) % len(_TABLE)


def likely(context: Sequence[int], rank: int = 0) -> int:
    """Return the target's most probable next token, or that of another rank."""
    return int(np.argsort(-_TABLE[row_of(context)], kind="stable")[rank])


@cache
def _config() -> Any:
    return runner_of(tiny_transformers("llama"), kv_tokens=64).config


def target_runner(kv_tokens: int) -> ModelRunner:
    """Return a runner of the hash model with an empty cache."""
    blocks = kv_tokens // BLOCK_TOKENS
    return ModelRunner(_config(), HashExecutor(blocks * BLOCK_TOKENS), blocks)


@cache
def target_compiler() -> Compiler:
    """Return the compiler of constraints, which all worlds share."""
    return Compiler(ascii_tokenizer().to_json(), VOCABULARY, [EOS])
