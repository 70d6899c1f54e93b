"""The paged key/value cache of all requests of one model.

    positions of one request in the cache   0 .. cached-1 | cached .. cached+nodes-1
                                            committed       tentative tree nodes, in scoring order
    physical slot of position p             blocks[p // B] * B + p % B

A forward pass writes the keys and values of appended context and of tree nodes. `commit(path)` keeps the nodes of
one path from the root as context, moves their entries to consecutive positions, and drops the other nodes.

Prefix cache: a full block of context is filed under a hash of its tokens and of the block before it, and `share`
lets other sequences use it. Shared blocks are full, so no sequence writes to them. A block that no sequence uses
keeps its content until it is allocated again, least recently used first.

With a window (`KVWindow`, StreamingLLM, arXiv 2309.17453) the cache keeps a request's first tokens, the attention
sinks, and its last tokens; `slide` drops whole blocks between them. Rotary attention depends only on differences
of positions, so a drop rotates only the sinks' keys (`KVStorage.rotate`). A window is lossy and off by default;
windowed prefixes are not shared.

Invariant (`check`): a block is free, or its count is the number of sequences that use it; a sequence has exactly
the blocks its tokens need.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import numpy as np

from specinfer.errors import ExhaustedError, InvalidInputError
from specinfer.model.cache.prefix_directory import PrefixDirectory
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, KVWindow, Slots, blocks_for

CACHE_TOKENS = 32768
"""Default capacity of a cache, in context tokens."""
_STATES_OF_DELTA = 2
"""Recurrent states per delta: after its last whole block, and its end."""


class KVStorage(Protocol):
    """Memory of keys and values, in the executor's own layout."""

    def move(self, source: Slots, target: Slots) -> None:
        """Copy entries between slots; read all sources before writing any target."""

    def rotate(self, slots: Slots, delta: int) -> None:
        """Rotate the keys of slots by `delta` rotary positions."""


@runtime_checkable
class BlockStorage(Protocol):
    """Memory whose blocks can be copied out and in."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's keys and values, of all layers."""

    @property
    def block_layout(self) -> str:
        """Name of the bytes' format; only equal formats share blocks."""

    def read_block(self, block: int) -> bytes:
        """Return the bytes of a block."""

    def write_block(self, block: int, data: bytes) -> None:
        """Fill a block with bytes of `read_block`."""


class PagedKVCache:
    """Allocation of a storage's blocks to sequences."""

    def __init__(
        self,
        num_blocks: int,
        storage: KVStorage,
        window: KVWindow | None = None,
        states: RecurrentStates[Any] | None = None,
    ) -> None:
        self.num_blocks, self._storage, self.window = num_blocks, storage, window
        self.states = states
        """States of recurrent layers; None: the model has no such layers."""
        # in order of allocation
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._uses = [0] * num_blocks
        self._filed: dict[bytes, int] = {}  # hash of a full block -> block
        self._hash_of: dict[int, bytes] = {}  # block -> hash
        self._sequences: list[KVSequence] = []
        self.queried_tokens = 0
        """Context tokens looked up, in whole blocks, since the start."""
        self.shared_tokens = 0
        """Looked-up tokens that `share` found, since the start."""
        self.restored_tokens = 0
        """Found tokens that came from the directory of prefixes, since the start."""
        self._prefixes: tuple[PrefixDirectory, BlockStorage] | None = None

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
        """Tokens that fit into the free blocks."""
        return len(self._free) * BLOCK_TOKENS

    def keep_prefixes(self, directory: PrefixDirectory, storage: BlockStorage) -> None:
        """Write evicted blocks to a directory; let `share` read them."""
        self._prefixes = directory, storage

    def save_prefixes(self) -> None:
        """Write all filed blocks that the directory of prefixes lacks.

        A directory that is too small keeps the last written. So recently used blocks are written last, and of a
        prompt the first blocks, as later blocks are useless without them.
        """
        used = [block for block in reversed(self._hash_of) if block not in self._free]
        for block in (*self._free, *used):
            if block in self._hash_of:
                self._save(self._hash_of[block], block, wait=True)
        if self._prefixes is not None:
            self._prefixes[0].flush()

    def _save(self, key: bytes, block: int, wait: bool = False) -> None:
        if self._prefixes is not None and key not in self._prefixes[0]:
            directory, storage = self._prefixes
            directory.write(key, storage.read_block(block), wait)

    def _restore(self, key: bytes) -> int | None:
        """Read a block from the directory into a free block; return it.

        None: no block is free, or the directory lacks the block.
        """
        if self._prefixes is None or not self._free:
            return None
        directory, storage = self._prefixes
        data = directory.read(key, storage.block_bytes)
        if data is None:
            return None
        block = self._take_free()
        self._give_back(block)
        storage.write_block(block, data)
        self._filed[key], self._hash_of[block] = block, key
        self.restored_tokens += BLOCK_TOKENS
        return block

    def open(self, scope: str = "") -> KVSequence:
        """Return an empty sequence; sequences of the same scope share blocks."""
        sequence = KVSequence(scope)
        self._sequences.append(sequence)
        return sequence

    def reserve(self, sequence: KVSequence, delta: int, nodes: int = 0, parents: Seq[int] = ()) -> None:
        """Reserve space for context tokens and nodes at the sequence's end.

        Args:
            parents: parents of the nodes, as in `add_nodes`, if known. Recurrent layers store a state after each node
                that has children and ends a block.

        Raises:
            ExhaustedError: if too few blocks or states are free; the sequence is unchanged.
        """
        missing = blocks_for(sequence.cached + sequence.nodes + delta + nodes) - len(sequence.blocks)
        if missing > len(self._free):
            raise ExhaustedError(f"KV cache full: {missing} blocks needed, {len(self._free)} free")
        if self.states is not None:
            ends = sequence.block_ends(delta, parents)
            self.states.claim(sequence, _STATES_OF_DELTA if delta else 0, nodes, ends)
        for _ in range(missing):
            sequence.blocks.append(self._take_free())

    def share(self, sequence: KVSequence, tokens: Seq[int], max_restored: int | None = None) -> int:
        """Extend the context by leading blocks of `tokens` from the cache.

        Args:
            max_restored: maximum tokens, rounded up to blocks, to read from the directory of prefixes; None: all.

        Returns:
            Number of added tokens, a multiple of the block size.
        """
        start = sequence.length
        if self.window is not None:
            return 0
        if start % BLOCK_TOKENS or sequence.nodes or len(sequence.blocks) * BLOCK_TOKENS != start:
            return 0
        blocks = self._claim(sequence, tokens, max_restored)
        sequence.blocks.extend(blocks)
        self._extend(sequence, tokens[: len(blocks) * BLOCK_TOKENS])
        self.shared_tokens += sequence.length - start
        return sequence.length - start

    def _claim(self, sequence: KVSequence, tokens: Seq[int], max_restored: int | None) -> list[int]:
        """Return the filed blocks of a sequence's next tokens, counted as used.

        With recurrent layers, the last of them has a stored state after its last token.
        """
        blocks: list[int] = []
        restored: list[bytes] = []
        known, queried = _last_hash(sequence), len(tokens)
        for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            known = _block_hash(known, tokens[at : at + BLOCK_TOKENS])
            block = self._filed.get(known)
            if block is None:
                if max_restored is not None and len(restored) * BLOCK_TOKENS >= max_restored:
                    queried = at  # the next call looks the rest up
                    break
                block = self._restore(known)
                if block is None:
                    break
                restored.append(known)
            self._free.pop(block, None)
            self._uses[block] += 1
            blocks.append(block)
        self.queried_tokens += queried // BLOCK_TOKENS * BLOCK_TOKENS
        if self._prefixes is not None:
            self._prefixes[0].note_use(restored)
        if self.states is not None:
            while blocks and _last_slot(blocks[-1]) not in self.states:
                self._give_back(blocks.pop())
        return blocks

    def append(self, sequence: KVSequence, tokens: Seq[int]) -> None:
        """Add context tokens whose keys and values the pass has written."""
        assert sequence.nodes == 0, "context must grow before nodes are added"
        self._extend(sequence, tokens)

    def lengthen(self, sequence: KVSequence, count: int) -> None:
        """Add context tokens without keys and values, to measure passes.

        Raises:
            ExhaustedError: if too few blocks are free.
        """
        assert self.states is None, "a model with recurrent layers needs its states"
        self.reserve(sequence, count)
        sequence.unwritten = True
        sequence.tokens.extend([0] * count)

    def add_nodes(self, sequence: KVSequence, tokens: Seq[int], parents: Seq[int]) -> None:
        """Add tentative nodes; parents are node indices, -1 the context's end."""
        for token, parent in zip(tokens, parents, strict=True):
            if not -1 <= parent < sequence.nodes:
                raise InvalidInputError("node parent", parent, "must be an earlier tentative node or -1")
            sequence.node_depths.append(sequence.node_depths[parent] + 1 if parent >= 0 else 1)
            sequence.node_parents.append(parent)
            sequence.node_tokens.append(token)
        if self.states is not None:
            self.states.note_ends(sequence, sequence.block_ends())

    def commit(self, sequence: KVSequence, path: Seq[int]) -> None:
        """Keep a path's nodes, from the root down, as context; drop others."""
        expected = -1
        for node in path:
            if not 0 <= node < sequence.nodes or sequence.node_parents[node] != expected:
                raise InvalidInputError(
                    "path", list(path), "must be a path of tentative nodes from a root's child"
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
        """Drop blocks after the sinks if more than the window is cached.

        Args:
            ahead: maximum tokens of the next pass; rotary positions are reset before they exceed the model's maximum.

        Returns:
            Number of dropped tokens.
        """
        if self.window is None:
            return 0
        sinks, dropped = self.window.sink_blocks, 0
        while sequence.cached - dropped - BLOCK_TOKENS >= self.window.tokens:
            self._give_back(sequence.blocks.pop(sinks))
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
        """Free reserved blocks and states that no token needs."""
        if self.states is not None:
            self.states.unclaim(sequence)
        keep = blocks_for(sequence.cached + sequence.nodes)
        self._drop(sequence, keep)

    def _take_free(self) -> int:
        """Return the least recently used free block; save its content first."""
        block, _ = self._free.popitem(last=False)
        known = self._hash_of.pop(block, None)
        if known is not None:
            self._save(known, block)
            del self._filed[known]
        if self.states is not None:
            self.states.forget(range(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS))
        self._uses[block] = 1
        return block

    def _drop(self, sequence: KVSequence, keep: int) -> None:
        """Free the blocks after the first `keep`; the last are reused first."""
        for block in reversed(sequence.blocks[keep:]):
            self._give_back(block)
        del sequence.blocks[keep:]

    def _give_back(self, block: int) -> None:
        self._uses[block] -= 1
        if not self._uses[block]:
            self._free[block] = None

    def _extend(self, sequence: KVSequence, tokens: Seq[int], scored: int = 0) -> None:
        """Add committed tokens and file the blocks that they complete.

        `scored` is the number of the tree's nodes among which an accepted path was chosen.
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
            sequence.chain.append(_block_hash(_last_hash(sequence), part))
            block = sequence.blocks[index]
            self._file(sequence.chain[-1], block)

    def _file(self, key: bytes, block: int) -> None:
        """File a block by hash; one with a recurrent state replaces another."""
        filed = self._filed.get(key)
        if block in self._hash_of:
            return
        if filed is not None:
            if (
                self.states is None
                or _last_slot(filed) in self.states
                or _last_slot(block) not in self.states
            ):
                return
            del self._hash_of[filed]
        self._filed[key], self._hash_of[block] = block, key

    def check(self) -> None:
        """Assert the cache's invariant; no pass may be running."""
        owned = Counter(block for sequence in self._sequences for block in sequence.blocks)
        for block in range(self.num_blocks):
            assert self._uses[block] == owned[block], "a block's count is wrong"
            assert (block in self._free) == (not owned[block]), "a block was lost, or is free and in use"
        for sequence in self._sequences:
            assert len(sequence.blocks) == blocks_for(sequence.cached + sequence.nodes), "wrong block count"
        assert self._filed == {known: block for block, known in self._hash_of.items()}, "files disagree"


def _last_slot(block: int) -> int:
    return (block + 1) * BLOCK_TOKENS - 1


def _last_hash(sequence: KVSequence) -> bytes:
    """Return the hash of the last full block; without one, the scope's."""
    if sequence.chain:
        return sequence.chain[-1]
    return hashlib.blake2b(sequence.scope.encode(), digest_size=16, person=b"scope").digest()


def _block_hash(before: bytes, tokens: Seq[int]) -> bytes:
    """Return a 128-bit hash of a block's tokens and the hash `before`."""
    digest = hashlib.blake2b(before, digest_size=16)
    digest.update(np.asarray(tokens, np.int32).tobytes())
    return digest.digest()
