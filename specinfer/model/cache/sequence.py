"""Contents of the paged cache for one request, and their blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from specinfer.errors import SettingError

BLOCK_TOKENS = 16

Slots = Sequence[int]


class KVSequence:
    """Contents of the cache for one request. Only `PagedKVCache` changes it."""

    def __init__(self, scope: str = "") -> None:
        self.scope = scope
        """Blocks are shared with sequences of the same scope only."""
        self.tokens: list[int] = []
        """Committed context."""
        self.blocks: list[int] = []
        self.node_tokens: list[int] = []
        self.node_parents: list[int] = []
        """Parent of each tentative node; -1 for the last context token."""
        self.node_depths: list[int] = []
        self.chain: list[bytes] = []
        """Hash of every full block of context, each covering those before it."""
        self.evicted = 0
        """Context tokens dropped after the sinks."""
        self.shift = 0
        """Rotary position of a token minus its position in the cache."""
        self.unwritten = False
        """True if context tokens have no keys; blocks are not shared."""
        self.released = False

    @property
    def length(self) -> int:
        """Committed context tokens, dropped ones included."""
        return len(self.tokens)

    @property
    def cached(self) -> int:
        """Context tokens with cached keys and values."""
        return len(self.tokens) - self.evicted

    @property
    def nodes(self) -> int:
        """Tentative tree nodes."""
        return len(self.node_parents)

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the physical slots of positions [start, stop) in the cache."""
        table = self.blocks
        return [table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in range(start, stop)]

    def block_ends(self, delta: int = 0, parents: Sequence[int] = ()) -> int:
        """Count tentative inner nodes at the last place of a cache block.

        Args:
            delta: number of tokens to be added to the context before the nodes.
            parents: parents of nodes to be added.
        """
        depths = list(self.node_depths)
        for parent in parents:
            depths.append(depths[parent] + 1 if 0 <= parent < len(depths) else 1)
        inner = {*self.node_parents, *parents}.intersection(range(len(depths)))
        return sum((self.cached + delta + depths[node]) % BLOCK_TOKENS == 0 for node in inner)

    def node_path(self, node: int) -> list[int]:
        """Return the tentative nodes from the root's child down to `node` itself."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.node_parents[node]
        return path[::-1]


def blocks_for(tokens: int) -> int:
    """Return the number of blocks for this many tokens."""
    return -(-tokens // BLOCK_TOKENS)


SINKS = 4
"""First tokens of a request that a windowed cache never drops."""


@dataclass(frozen=True, slots=True)
class KVWindow:
    """Part of a request's context that a windowed cache keeps. Lossy."""

    tokens: int
    """Context tokens kept, sinks included; up to a block more."""
    sinks: int
    """First tokens that are never dropped, rounded up to whole blocks."""
    max_positions: int
    """Rotary positions that the model knows."""

    def __post_init__(self) -> None:
        if self.tokens < self.sink_blocks * BLOCK_TOKENS + BLOCK_TOKENS:
            least = (self.sink_blocks + 1) * BLOCK_TOKENS
            raise SettingError("kv_window", self.tokens, f"must be at least {least} with {self.sinks} sinks")

    @property
    def sink_blocks(self) -> int:
        """Blocks that are never dropped."""
        return blocks_for(self.sinks)
