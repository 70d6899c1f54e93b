"""Stores the states of recurrent layers by their token's cache slot.

Like keys and values, a state depends on all tokens up to its own, so each tree node has a state. States are large:
only states from which a pass may continue are stored. These follow each context's last token, tentative nodes and,
if memory is left, the last tokens of blocks, where other requests continue (`PagedKVCache.share`).
"""

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from specinfer.errors import ExhaustedError
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots

_SNAPSHOTS = 32
"""Maximum number of snapshots: states after blocks that no current request needs."""
State = TypeVar("State")


class RecurrentStates(Generic[State]):
    """A model's states: the executor writes them, `PagedKVCache` keeps or drops them."""

    def __init__(self, nodes_per_state: int = 1) -> None:
        """Create an empty store.

        `nodes_per_state` tentative nodes (their changes of a state) take about the memory of one state.
        """
        self._nodes_per_state = nodes_per_state
        self._states: dict[int, State] = {}
        self._users = Counter[int]()
        """Number of contexts that end at a slot."""
        self._snapshots: OrderedDict[int, None] = OrderedDict()
        """Slots of snapshots, least recently used first."""
        self._claims: dict[KVSequence, int] = {}
        """Number of states that a sequence may write in its next pass."""
        self._ends: dict[KVSequence, int] = {}
        """Number of nodes with full states, by sequence (see `note_ends`)."""
        self.limit: int | None = None
        """Number of full states that fit in memory; None: not known yet."""

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, slot: int) -> bool:
        return slot in self._states

    def __getitem__(self, slot: int) -> State:
        return self._states[slot]

    def __setitem__(self, slot: int, state: State) -> None:
        self._snapshots.pop(slot, None)
        self._states[slot] = state

    @property
    def needed(self) -> int:
        """Memory of states that must stay, in full states."""
        contexts = sum(slot in self._states for slot in self._users)
        nodes = len(self._states) - len(self._snapshots) - contexts
        return contexts + self._memory_of(nodes) + sum(self._ends.values())

    def _memory_of(self, nodes: int) -> int:
        return -(-nodes // self._nodes_per_state)

    def claim(self, sequence: KVSequence, states: int, nodes: int, ends: int = 0) -> None:
        """Reserve memory for the states of a sequence's next pass.

        The claim covers `states` of the context and those of `nodes` new nodes, and lasts until the context is
        extended. `ends` nodes, old and new, end a block and have children (see `note_ends`).

        The only sequence is never refused: no other sequence could release memory.

        Raises:
            ExhaustedError: if too little memory is free; claims are unchanged.
        """
        if self.limit is None:
            return
        own_end = self._ends.get(sequence, 0)
        states += self._memory_of(nodes) + max(self._kept_ends(ends) - own_end, 0)
        other_claims = sum(self._claims.values()) - self._claims.get(sequence, 0)
        free = self.limit - self.needed - other_claims
        if states > free and (other_claims or self.needed > 1 + self._memory_of(sequence.nodes) + own_end):
            raise ExhaustedError(
                f"memory of recurrent layers full: {states} states needed, {max(free, 0)} free"
            )
        self._claims[sequence] = states
        self.shrink(max(free - states, 0))

    def note_ends(self, sequence: KVSequence, ends: int) -> None:
        """Note how many nodes end a block and have children.

        Each of them has a full state, not only changes.
        """
        self._ends.pop(sequence, None)
        if kept := self._kept_ends(ends):
            self._ends[sequence] = kept

    def _kept_ends(self, ends: int) -> int:
        return ends if self._nodes_per_state > 1 else 0

    def unclaim(self, sequence: KVSequence) -> None:
        """Remove the claim of a sequence, if any."""
        self._claims.pop(sequence, None)

    def extend(
        self,
        sequence: KVSequence,
        before: int | None,
        written: Slots,
        last: int | None,
        dropped: Slots = (),
    ) -> None:
        """Move the end of a context from slot `before` to slot `last`.

        Args:
            sequence: sequence of the context.
            before: slot of the context's last token so far; None: it was empty.
            written: slots of the tokens after `before`, up to `last`.
            last: slot of the context's new last token; None: it is empty or released.
            dropped: slots of nodes that did not become context; no request can continue from their states.
        """
        self.unclaim(sequence)
        self.forget(dropped)
        if last is not None:
            self._users[last] += 1
            self._snapshots.pop(last, None)
        if before is not None:
            self._users[before] -= 1
            written = [before, *written]
        for slot in written:
            if not self._users[slot]:
                del self._users[slot]
                self._dismiss(slot)

    def _dismiss(self, slot: int) -> None:
        """Make a state after a whole block a snapshot; drop others."""
        if slot not in self._states:
            return
        if slot % BLOCK_TOKENS != BLOCK_TOKENS - 1:
            del self._states[slot]
            return
        self._snapshots[slot] = None
        self._snapshots.move_to_end(slot)
        self.shrink(_SNAPSHOTS)

    def shrink(self, snapshots: int) -> None:
        """Drop the least recently used snapshots above this number."""
        while len(self._snapshots) > snapshots:
            slot, _ = self._snapshots.popitem(last=False)
            del self._states[slot]

    def forget(self, slots: Slots) -> None:
        """Drop the states of slots that will be overwritten."""
        for slot in slots:
            self._snapshots.pop(slot, None)
            self._states.pop(slot, None)

    def move(self, source: Slots, target: Slots) -> None:
        """Copy entries between slots; read all sources before writing any target."""
        states = [self._states.get(slot) for slot in source]
        for slot, state in zip(target, states, strict=True):
            if state is None:
                self.forget([slot])
            else:
                self[slot] = state
