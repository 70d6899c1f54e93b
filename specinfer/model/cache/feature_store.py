"""Stores hidden states of the target next to keys and values.

Speculators that read hidden states (EAGLE, Medusa) may connect late, restart, or share a prompt's blocks. So a
state is stored by its token's cache slot as long as the token's key, and can be read at any time. Tokens computed
before `keep` have no states (see `read`).

The store wraps the cache's storage, so that states move together with keys and values.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.model.cache.block_pool import BlockStorage
from specinfer.model.cache.kv_cache import KVStorage
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots

Bfloat16 = NDArray[np.int16]
"""Bfloat16 numbers as their 16 bits; numpy has no type for them."""


class FeatureStore:
    """Hidden states [layers, hidden] of a storage's slots, in bfloat16."""

    def __init__(self, storage: KVStorage, slots: int) -> None:
        self._storage, self._slots = storage, slots
        self.layers: tuple[int, ...] = ()
        """Layers whose hidden states are stored; empty: nothing is stored."""
        self._states: Bfloat16 = np.empty((slots, 0, 0), np.int16)
        self._known = np.zeros(slots, np.bool_)

    @property
    def token_bytes(self) -> int:
        return int(np.prod(self._states.shape[1:])) * self._states.itemsize

    def keep(self, layers: Sequence[int], hidden: int) -> None:
        """Set the stored layers; if they change, drop all stored states."""
        if tuple(layers) == self.layers:
            return
        self.layers = tuple(layers)
        self._states = np.empty((self._slots if layers else 0, len(layers), hidden), np.int16)
        self._known[:] = False

    def write(self, slots: Slots, states: Bfloat16) -> None:
        """Store the states [T, layers, hidden] of tokens that were just computed."""
        self._states[slots] = states
        self._known[slots] = True

    def forget(self, slots: Slots) -> None:
        """Drop the states of slots whose tokens were overwritten."""
        self._known[slots] = False

    def read(self, slots: Slots, max_rows: int) -> tuple[int, Bfloat16]:
        """Return the states of the last tokens that all have states.

        Args:
            slots: slots of consecutive tokens.
            max_rows: maximum number of returned tokens; the first ones are returned.

        Returns:
            Number of skipped tokens, and states [tokens, layers, hidden]. All tokens up to the last one without a state
            are skipped.
        """
        unknown = np.flatnonzero(~self._known[slots]) if len(slots) else np.zeros(0, np.int64)
        first = int(unknown[-1]) + 1 if len(unknown) else 0
        return first, self._states[slots[first : first + max_rows]]

    def move(self, source: Slots, target: Slots) -> None:
        self._storage.move(source, target)
        if self.layers:
            self._states[target] = self._states[source]
            self._known[target] = self._known[source]

    @property
    def blocks(self) -> BlockStorage | None:
        """This object, if the KV storage can copy blocks; otherwise None."""
        return self if isinstance(self._storage, BlockStorage) else None

    @property
    def block_bytes(self) -> int:
        return self._copied.block_bytes

    @property
    def block_layout(self) -> str:
        return self._copied.block_layout

    def read_block(self, block: int) -> bytes:
        return self._copied.read_block(block)

    def write_block(self, block: int, data: bytes) -> None:
        """Overwrite a block; its tokens then have no hidden states."""
        self._copied.write_block(block, data)
        self.forget(range(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS))

    @property
    def _copied(self) -> BlockStorage:
        assert isinstance(self._storage, BlockStorage), "see `blocks`"
        return self._storage

    def rotate(self, slots: Slots, delta: int) -> None:
        """Rotate keys by `delta` positions; hidden states have no position."""
        self._storage.rotate(slots, delta)
