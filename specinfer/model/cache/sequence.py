"""A request's tokens in the paged cache, and their blocks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specinfer.errors import SettingError

BLOCK_TOKENS = 16

Slots = Sequence[int]


class KVSequence:
    """Tokens, nodes and blocks of one request. Only `PagedKVCache` changes them."""

    def __init__(self, scope: str = "") -> None:
        self.scope = scope
        """Only sequences of the same scope share blocks."""
        self.tokens: list[int] = []
        self.blocks: list[int] = []
        self.node_tokens: list[int] = []
        self.node_parents: list[int] = []
        """Parent of each tentative node; -1 for the last context token."""
        self.node_depths: list[int] = []
        self.chain: list[bytes] = []
        """Hash of each full block of context and the blocks before it."""
        self.evicted = 0
        """Number of context tokens that a window dropped after the sinks."""
        self.shift = 0
        """Rotary position of a token minus its position in the cache."""
        self.unwritten = False
        """True after `PagedKVCache.lengthen`: tokens have no keys, so blocks are not shared."""
        self.released = False

    @property
    def length(self) -> int:
        """Number of committed context tokens, including dropped tokens."""
        return len(self.tokens)

    @property
    def cached(self) -> int:
        """Number of context tokens with cached keys and values."""
        return len(self.tokens) - self.evicted

    @property
    def nodes(self) -> int:
        return len(self.node_parents)

    @property
    def last_hash(self) -> bytes:
        """Hash of the last full block; without one, the scope's."""
        if self.chain:
            return self.chain[-1]
        return hashlib.blake2b(self.scope.encode(), digest_size=16, person=b"scope").digest()

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the physical slots of positions [start, stop) in the cache."""
        table = self.blocks
        return [table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in range(start, stop)]

    def block_ends(self, delta: int = 0, parents: Sequence[int] = ()) -> int:
        """Return the number of nodes that have children and end a block.

        Args:
            delta: number of context tokens to add before the nodes.
            parents: parents of nodes to add.
        """
        depths = list(self.node_depths)
        for parent in parents:
            depths.append(depths[parent] + 1 if 0 <= parent < len(depths) else 1)
        inner = {*self.node_parents, *parents}.intersection(range(len(depths)))
        return sum((self.cached + delta + depths[node]) % BLOCK_TOKENS == 0 for node in inner)

    def node_path(self, node: int) -> list[int]:
        """Return the tentative nodes from the root's child to `node`, inclusive."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.node_parents[node]
        return path[::-1]


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def block_hash(before: bytes, tokens: Sequence[int]) -> bytes:
    """Return a 128-bit hash of a block's tokens and the hash `before`."""
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(np.asarray(tokens, np.int32).tobytes())
    return digest.digest()


SINKS = 4
"""First tokens of a request that a windowed cache never drops."""


@dataclass(frozen=True, slots=True)
class KVWindow:
    """Limits of a windowed cache (StreamingLLM), which changes the model's output."""

    tokens: int
    """Number of context tokens to keep, sinks included, rounded up to blocks."""
    sinks: int
    """Number of first tokens to keep, rounded up to whole blocks."""
    max_positions: int

    def __post_init__(self) -> None:
        if self.tokens < self.sink_blocks * BLOCK_TOKENS + BLOCK_TOKENS:
            least = (self.sink_blocks + 1) * BLOCK_TOKENS
            reason = f"must be at least {least} tokens with {self.sinks} attention sinks"
            raise SettingError("kv_window", self.tokens, reason)

    @property
    def sink_blocks(self) -> int:
        """Number of first blocks that are never dropped."""
        return blocks_for(self.sinks)
