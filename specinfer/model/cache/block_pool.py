"""Allocates the blocks of a cache, and shares them by their tokens.

Prefix cache: a full block of context is registered by a hash of its tokens and of all tokens before. `claim` finds it,
so that other sequences use it. Shared blocks are full, so no sequence writes to them. A block that no sequence uses
keeps its content until it is allocated again, least recently used first; its content is then written to the
prefix directory (`PrefixDirectory`), if there is one.

Invariant (`check`): a block is free, or its count is the number of sequences that use it.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from specinfer.model.cache.prefix_directory import PrefixDirectory
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS, block_hash


@runtime_checkable
class BlockStorage(Protocol):
    """Memory whose blocks can be copied out and in."""

    @property
    def block_bytes(self) -> int:
        """Bytes of the keys and values of one block, in all layers."""

    @property
    def block_layout(self) -> str:
        """Name of the byte layout; only equal layouts can exchange blocks."""

    def read_block(self, block: int) -> bytes: ...

    def write_block(self, block: int, data: bytes) -> None:
        """Overwrite a block with bytes that `read_block` returned."""


class BlockPool:
    """Allocation and reuse of a storage's blocks."""

    def __init__(self, num_blocks: int, states: RecurrentStates[Any] | None = None) -> None:
        self.num_blocks, self._states = num_blocks, states
        # in order of allocation
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._uses = [0] * num_blocks
        self._filed: dict[bytes, int] = {}  # hash of a full block -> block
        self._hash_of: dict[int, bytes] = {}  # block -> hash
        self.queried_tokens = 0
        """Context tokens looked up, in whole blocks, since the start."""
        self.shared_tokens = 0
        """Tokens of `queried_tokens` that `claim` found, since the start."""
        self.restored_tokens = 0
        """Tokens of `shared_tokens` read from the prefix directory, since the start."""
        self._prefixes: tuple[PrefixDirectory, BlockStorage] | None = None

    @property
    def free_blocks(self) -> int:
        """Number of blocks that no sequence uses."""
        return len(self._free)

    def take(self) -> int:
        """Return the least recently used free block.

        A cached block is first written to the prefix directory, if there is one.
        """
        block, _ = self._free.popitem(last=False)
        known = self._hash_of.pop(block, None)
        if known is not None:
            self._save(known, block)
            del self._filed[known]
        if self._states is not None:
            self._states.forget(range(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS))
        self._uses[block] = 1
        return block

    def give_back(self, block: int) -> None:
        """Count one sequence less for a block; unused blocks keep their content."""
        self._uses[block] -= 1
        if not self._uses[block]:
            self._free[block] = None

    def claim(self, known: bytes, tokens: Sequence[int], max_restored: int | None) -> list[int]:
        """Return the cached blocks at the beginning of `tokens`; count their use.

        With recurrent layers, the last block ends with a stored state.

        Args:
            known: hash of the context before the tokens (`KVSequence.last_hash`).
            max_restored: maximum tokens to read from the prefix directory, rounded up to blocks; None: no maximum.
        """
        blocks: list[int] = []
        restored: list[bytes] = []
        queried = len(tokens)
        for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            known = block_hash(known, tokens[at : at + BLOCK_TOKENS])
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
        if self._states is not None:
            while blocks and _last_slot(blocks[-1]) not in self._states:
                self.give_back(blocks.pop())
        self.shared_tokens += len(blocks) * BLOCK_TOKENS
        return blocks

    def file(self, key: bytes, block: int) -> None:
        """Let `claim` find a full block, unless it finds an equal block.

        If only the new block has a recurrent state, it replaces the old one.
        """
        filed = self._filed.get(key)
        if block in self._hash_of:
            return
        if filed is not None:
            if (
                self._states is None
                or _last_slot(filed) in self._states
                or _last_slot(block) not in self._states
            ):
                return
            del self._hash_of[filed]
        self._filed[key], self._hash_of[block] = block, key

    def keep_prefixes(self, directory: PrefixDirectory, storage: BlockStorage) -> None:
        """Write evicted blocks to a directory; let `claim` read them."""
        self._prefixes = directory, storage

    def save_prefixes(self) -> None:
        """Write all cached blocks that the prefix directory lacks.

        If the directory is too small, it keeps the blocks written last. So recently used prompts are written last, and
        each prompt in reverse: its first blocks are the most useful.
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
        """Read a block from the prefix directory into a free block.

        Returns None if no block is free, or if the directory lacks the block.
        """
        if self._prefixes is None or not self._free:
            return None
        directory, storage = self._prefixes
        data = directory.read(key, storage.block_bytes)
        if data is None:
            return None
        block = self.take()
        self.give_back(block)
        storage.write_block(block, data)
        self._filed[key], self._hash_of[block] = block, key
        self.restored_tokens += BLOCK_TOKENS
        return block

    def check(self, owned: Counter[int]) -> None:
        """Assert the invariant; `owned` counts the sequences of each block."""
        for block in range(self.num_blocks):
            assert self._uses[block] == owned[block], "a block's count is wrong"
            assert (block in self._free) == (not owned[block]), "a block was lost, or is free and in use"
        assert self._filed == {known: block for block, known in self._hash_of.items()}, "files disagree"


def _last_slot(block: int) -> int:
    return (block + 1) * BLOCK_TOKENS - 1
