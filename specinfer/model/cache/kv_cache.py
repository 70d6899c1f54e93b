"""The paged key/value cache of all requests of one model.

    positions of one request in the cache   0 .. cached-1 | cached .. cached+nodes-1
                                            committed       tentative tree nodes, in scoring order
    physical slot of position p             blocks[p // B] * B + p % B

A forward pass writes the keys and values of appended context and of tree nodes. `commit(path)` keeps the nodes of
one path from the root as context, moves their entries to consecutive positions, and drops the other nodes.

Full blocks of context are shared between sequences and outlive them (`BlockPool`).

With a window (`KVWindow`, StreamingLLM, arXiv 2309.17453) the cache keeps a request's first tokens, the attention
sinks, and its last tokens; `slide` drops whole blocks between them. Rotary attention depends only on differences
of positions, so a drop rotates only the sinks' keys (`KVStorage.rotate`). A window is lossy and off by default;
windowed prefixes are not shared.

Invariant (`check`): a sequence has exactly the blocks its tokens need; the invariant of `BlockPool` is valid, too.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any, Protocol

from specinfer.errors import ExhaustedError, InvalidInputError
from specinfer.model.cache.block_pool import BlockPool
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, KVWindow, Slots, block_hash, blocks_for

_STATES_OF_DELTA = 2
"""Recurrent states per delta: after its last whole block, and its end."""


class KVStorage(Protocol):
    """Memory of keys and values, in the executor's own layout."""

    def move(self, source: Slots, target: Slots) -> None:
        """Copy keys and values; read all sources before writing any target."""

    def rotate(self, slots: Slots, delta: int) -> None:
        """Rotate the keys of slots by `delta` rotary positions."""


class PagedKVCache:
    """Divides the blocks of a storage among sequences."""

    def __init__(
        self,
        num_blocks: int,
        storage: KVStorage,
        window: KVWindow | None = None,
        states: RecurrentStates[Any] | None = None,
    ) -> None:
        self._storage, self.window = storage, window
        self.states = states
        """States of recurrent layers; None: the model has no such layers."""
        self.pool = BlockPool(num_blocks, states)
        self._sequences: list[KVSequence] = []

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit into all blocks together."""
        return self.pool.num_blocks * BLOCK_TOKENS

    @property
    def free_tokens(self) -> int:
        """Tokens that fit into the free blocks."""
        return self.pool.free_blocks * BLOCK_TOKENS

    def open(self, scope: str = "") -> KVSequence:
        """Return an empty sequence; sequences of the same scope share blocks."""
        sequence = KVSequence(scope)
        self._sequences.append(sequence)
        return sequence

    def reserve(self, sequence: KVSequence, delta: int, nodes: int = 0, parents: Seq[int] = ()) -> None:
        """Reserve blocks for the next pass over a sequence.

        Args:
            delta: number of context tokens to add.
            nodes: number of tentative nodes to add.
            parents: parents of the nodes, if known. Recurrent layers need more memory for nodes that have children and
                end a block.
        """
        missing = blocks_for(sequence.cached + sequence.nodes + delta + nodes) - len(sequence.blocks)
        if missing > self.pool.free_blocks:
            raise ExhaustedError(
                f"KV cache full: a request needs {missing} more blocks of {BLOCK_TOKENS} tokens, "
                f"{self.pool.free_blocks} are free"
            )
        if self.states is not None:
            ends = sequence.block_ends(delta, parents)
            self.states.claim(sequence, _STATES_OF_DELTA if delta else 0, nodes, ends)
        for _ in range(missing):
            sequence.blocks.append(self.pool.take())

    def share(self, sequence: KVSequence, tokens: Seq[int], max_restored: int | None = None) -> int:
        """Extend the context by the longest prefix of `tokens` that is cached.

        Args:
            max_restored: maximum tokens to read from the prefix directory, rounded up to blocks; None: no maximum.

        Returns:
            Number of added tokens, a multiple of the block size.
        """
        start = sequence.length
        if self.window is not None:
            return 0
        if start % BLOCK_TOKENS or sequence.nodes or len(sequence.blocks) * BLOCK_TOKENS != start:
            return 0
        blocks = self.pool.claim(sequence.last_hash, tokens, max_restored)
        sequence.blocks.extend(blocks)
        self._extend(sequence, tokens[: len(blocks) * BLOCK_TOKENS])
        return sequence.length - start

    def append(self, sequence: KVSequence, tokens: Seq[int]) -> None:
        """Add context tokens whose keys and values the pass has written."""
        assert sequence.nodes == 0, "context must grow before nodes are added"
        self._extend(sequence, tokens)

    def lengthen(self, sequence: KVSequence, count: int) -> None:
        """Add `count` context tokens whose keys and values are arbitrary.

        Only measurements of passes use it.
        """
        assert self.states is None, "a model with recurrent layers needs its states"
        self.reserve(sequence, count)
        sequence.unwritten = True
        sequence.tokens.extend([0] * count)

    def add_nodes(self, sequence: KVSequence, tokens: Seq[int], parents: Seq[int]) -> None:
        """Add tentative nodes; -1 as a parent is the last context token."""
        for token, parent in zip(tokens, parents, strict=True):
            if not -1 <= parent < sequence.nodes:
                raise InvalidInputError("node parent", parent, "must be an earlier tentative node or -1")
            sequence.node_depths.append(sequence.node_depths[parent] + 1 if parent >= 0 else 1)
            sequence.node_parents.append(parent)
            sequence.node_tokens.append(token)
        if self.states is not None:
            self.states.note_ends(sequence, sequence.block_ends())

    def commit(self, sequence: KVSequence, path: Seq[int]) -> None:
        """Turn the nodes of a path into context; drop all other nodes.

        The path begins with a child of the root.
        """
        expected = -1
        for node in path:
            if not 0 <= node < sequence.nodes or sequence.node_parents[node] != expected:
                raise InvalidInputError(
                    "path", list(path), "must lead from a child of the root to one of its descendants"
                )
            expected = node
        self._compact(sequence, path)
        kept = [sequence.node_tokens[node] for node in path]
        scored = sequence.nodes
        for nodes in (sequence.node_tokens, sequence.node_parents, sequence.node_depths):
            nodes.clear()
        if self.states is not None:
            self.states.note_ends(sequence, 0)
        self._extend(sequence, kept, scored)
        self.trim(sequence)

    def _compact(self, sequence: KVSequence, path: Seq[int]) -> None:
        moved = [(i, node) for i, node in enumerate(path) if i != node]
        if not moved:
            return
        base, end = sequence.cached, sequence.cached + sequence.nodes
        slots = sequence.slots(base, end)
        source, target = [slots[node] for _, node in moved], [slots[i] for i, _ in moved]
        self._storage.move(source, target)
        if self.states is not None:
            self.states.move(source, target)

    def slide(self, sequence: KVSequence, ahead: int) -> int:
        """Drop blocks after the sinks until about the window is cached.

        Args:
            ahead: maximum tokens of the next pass. Before it exceeds the model's positions, all keys are rotated back.

        Returns:
            Number of dropped tokens.
        """
        if self.window is None:
            return 0
        sinks, dropped = self.window.sink_blocks, 0
        while sequence.cached - dropped - BLOCK_TOKENS >= self.window.tokens:
            self.pool.give_back(sequence.blocks.pop(sinks))
            dropped += BLOCK_TOKENS
        if dropped:
            sequence.evicted += dropped
            sequence.shift += dropped
            self._storage.rotate(sequence.slots(0, sinks * BLOCK_TOKENS), dropped)
        if sequence.shift + sequence.cached + ahead > self.window.max_positions:
            self._storage.rotate(sequence.slots(0, sequence.cached), -sequence.shift)
            sequence.shift = 0
        return dropped

    def release(self, sequence: KVSequence) -> None:
        """Free all blocks and states of a sequence, which is unusable afterwards."""
        if sequence.released:
            return
        sequence.released = True
        self._sequences.remove(sequence)
        if self.states is not None:
            slots = sequence.slots(0, sequence.cached + sequence.nodes)
            cached = sequence.cached
            self.states.note_ends(sequence, 0)
            before = slots[cached - 1] if cached else None
            self.states.extend(sequence, before, [], None, dropped=slots[cached:])
        self._drop(sequence, 0)

    def trim(self, sequence: KVSequence) -> None:
        """Free reserved blocks and states that neither context nor nodes use."""
        if self.states is not None:
            self.states.unclaim(sequence)
        keep = blocks_for(sequence.cached + sequence.nodes)
        self._drop(sequence, keep)

    def _drop(self, sequence: KVSequence, keep: int) -> None:
        """Free all blocks after the first `keep`; later blocks are reused earlier."""
        for block in reversed(sequence.blocks[keep:]):
            self.pool.give_back(block)
        del sequence.blocks[keep:]

    def _extend(self, sequence: KVSequence, tokens: Seq[int], scored: int = 0) -> None:
        """Add committed tokens; make the blocks that they fill shareable.

        Args:
            scored: number of tentative nodes before the commit; 0 if there was no tree.
        """
        if self.states is not None and (tokens or scored):
            first = max(sequence.cached - 1, 0)
            slots = sequence.slots(first, sequence.cached + max(len(tokens), scored))
            before = slots.pop(0) if sequence.cached else None
            last = slots[len(tokens) - 1] if tokens else before
            self.states.extend(sequence, before, slots[: len(tokens)], last, dropped=slots[len(tokens) :])
        sequence.tokens.extend(tokens)
        if self.window is not None or sequence.unwritten:
            return
        while (len(sequence.chain) + 1) * BLOCK_TOKENS <= sequence.length:
            index = len(sequence.chain)
            part = sequence.tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
            sequence.chain.append(block_hash(sequence.last_hash, part))
            self.pool.file(sequence.chain[-1], sequence.blocks[index])

    def check(self) -> None:
        """Assert the cache's invariant; no pass may be running."""
        owned = Counter(block for sequence in self._sequences for block in sequence.blocks)
        self.pool.check(owned)
        for sequence in self._sequences:
            assert len(sequence.blocks) == blocks_for(sequence.cached + sequence.nodes), "wrong block count"
