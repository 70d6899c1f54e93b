"""The paged key/value cache of all requests of one model.

    logical positions of one request      0 .. length-1 | length .. length+nodes-1
                                          committed       tentative tree nodes, in scoring order
    physical slot of position p           blocks[p // B] * B + p % B

A forward pass writes the keys and values of appended context and of tree nodes. `commit(path)` keeps
the nodes of one root path as context, moving their scattered entries to consecutive positions, and
drops the others. Invariant (`check`): every block is free or belongs to exactly one sequence, and a
sequence owns exactly the blocks its tokens need.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import ExhaustedError, InvalidInputError

BLOCK_TOKENS = 16

Slots = NDArray[np.int64]


class KVSequence:
    """What the cache holds for one request. Only `PagedKVCache` changes it."""

    def __init__(self) -> None:
        self.length = 0
        """Committed context tokens."""
        self.blocks: list[int] = []
        self.node_parents: list[int] = []
        """Parent of each tentative node; -1 for the last context token."""
        self.node_depths: list[int] = []
        self.released = False

    @property
    def nodes(self) -> int:
        """Tentative tree nodes."""
        return len(self.node_parents)

    def slots(self, start: int, stop: int) -> Slots:
        """Physical slots of logical positions [start, stop)."""
        positions = np.arange(start, stop, dtype=np.int64)
        table = np.asarray(self.blocks, np.int64)
        slots: Slots = table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        return slots

    def node_path(self, node: int) -> list[int]:
        """Tentative nodes from the root's child down to `node` itself."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.node_parents[node]
        return path[::-1]


class KVStorage(Protocol):
    """Where keys and values lie; the executor's own layout."""

    def move(self, source: Slots, target: Slots) -> None:
        """Copies entries from slots to slots; all sources are read before any target is written."""


class PagedKVCache:
    """Hands out blocks of a storage and keeps the books."""

    def __init__(self, num_blocks: int, storage: KVStorage) -> None:
        self.num_blocks, self._storage = num_blocks, storage
        self._free = list(range(num_blocks - 1, -1, -1))
        self._sequences: list[KVSequence] = []

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""
        return BLOCK_TOKENS

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit into all blocks together."""
        return self.num_blocks * BLOCK_TOKENS

    @property
    def free_tokens(self) -> int:
        """Tokens that still fit into free blocks."""
        return len(self._free) * BLOCK_TOKENS

    def open(self) -> KVSequence:
        """A new, empty sequence."""
        sequence = KVSequence()
        self._sequences.append(sequence)
        return sequence

    def reserve(self, sequence: KVSequence, extra: int) -> None:
        """Makes room for `extra` tokens after everything the sequence holds.

        Raises:
            ExhaustedError: if there are too few free blocks; the sequence is unchanged.
        """
        missing = blocks_for(sequence.length + sequence.nodes + extra) - len(sequence.blocks)
        if missing > len(self._free):
            raise ExhaustedError(f"KV cache full: {missing} blocks needed, {len(self._free)} free")
        for _ in range(missing):
            sequence.blocks.append(self._free.pop())

    def append(self, sequence: KVSequence, tokens: int) -> None:
        """Counts `tokens` context tokens as held; their keys and values were just written."""
        assert sequence.nodes == 0, "context cannot grow behind tentative nodes"
        sequence.length += tokens

    def add_nodes(self, sequence: KVSequence, parents: Seq[int]) -> None:
        """Counts tree nodes as held; `parents` index tentative nodes, -1 is the last context token."""
        for parent in parents:
            if not -1 <= parent < sequence.nodes:
                raise InvalidInputError("node parent", parent, "must be an earlier tentative node or -1")
            sequence.node_depths.append(sequence.node_depths[parent] + 1 if parent >= 0 else 1)
            sequence.node_parents.append(parent)

    def commit(self, sequence: KVSequence, path: Seq[int]) -> None:
        """Keeps the tentative nodes of `path` (root's child first) as context and drops the rest."""
        expected = -1
        for node in path:
            if not 0 <= node < sequence.nodes or sequence.node_parents[node] != expected:
                raise InvalidInputError("path", list(path), "not a path of tentative nodes from the root")
            expected = node
        self._compact(sequence, path)
        sequence.length += len(path)
        sequence.node_parents.clear()
        sequence.node_depths.clear()
        self.trim(sequence)

    def _compact(self, sequence: KVSequence, path: Seq[int]) -> None:
        moved = [(i, node) for i, node in enumerate(path) if i != node]
        if not moved:
            return
        base, end = sequence.length, sequence.length + sequence.nodes
        slots = sequence.slots(base, end)
        self._storage.move(slots[[node for _, node in moved]], slots[[i for i, _ in moved]])

    def release(self, sequence: KVSequence) -> None:
        """Gives all blocks back; a released sequence must not be used again."""
        if sequence.released:
            return
        sequence.released = True
        self._sequences.remove(sequence)
        self._free.extend(reversed(sequence.blocks))
        sequence.blocks.clear()

    def trim(self, sequence: KVSequence) -> None:
        """Gives back blocks that were reserved and are not needed."""
        keep = blocks_for(sequence.length + sequence.nodes)
        self._free.extend(reversed(sequence.blocks[keep:]))
        del sequence.blocks[keep:]

    def check(self) -> None:
        """Asserts the invariant of this cache; call it whenever nothing is in flight."""
        owned = [block for sequence in self._sequences for block in sequence.blocks]
        assert len(set(owned)) == len(owned), "a block belongs to two sequences"
        assert not set(owned) & set(self._free), "a block is both free and owned"
        assert len(owned) + len(self._free) == self.num_blocks, "a block was lost"
        for sequence in self._sequences:
            assert len(sequence.blocks) == blocks_for(sequence.length + sequence.nodes), "wrong block count"


def blocks_for(tokens: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // BLOCK_TOKENS)
