"""Stores the states of recurrent layers by their token's cache slot.

Like keys and values, a state depends on all tokens up to its own, so each tree node has a state. States are large.
So only those are stored from which a pass may continue: after each context's last token, after tentative nodes and,
if memory is left, after the last tokens of blocks, where other requests may continue (`PagedKVCache.share`).
"""

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from specinfer.errors import ExhaustedError
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots

_SNAPSHOTS = 32
"""Maximum number of snapshots: states at block ends without a current user."""
State = TypeVar("State")


class RecurrentStates(Generic[State]):
    """A model's stored states: executors write them, `PagedKVCache` drops them."""

    def __init__(self, nodes_per_state: int = 1) -> None:
        """Create an empty store.

        `nodes_per_state` nodes take the memory of one full state, as a node may store only its change of the state.
        """
        self._nodes_per_state = nodes_per_state
        self._states: dict[int, State] = {}
        self._users = Counter[int]()
        """Slot -> number of contexts that end there."""
        self._snapshots: OrderedDict[int, None] = OrderedDict()
        """Slots of snapshots, least recently used first."""
        self._claims: dict[KVSequence, int] = {}
        """Sequence -> memory reserved for its next pass, in full states."""
        self._ends: dict[KVSequence, int] = {}
        """Sequence -> number of its tentative nodes with full states (`note_ends`)."""
        self.limit: int | None = None
        """Maximum memory in full states; None: the size is unknown."""

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
        """Memory of states that must not be dropped, in full states."""
        contexts = sum(slot in self._states for slot in self._users)
        nodes = len(self._states) - len(self._snapshots) - contexts
        return contexts + self._memory_of(nodes) + sum(self._ends.values())

    def _memory_of(self, nodes: int) -> int:
        return -(-nodes // self._nodes_per_state)

    def claim(self, sequence: KVSequence, states: int, nodes: int, ends: int = 0) -> None:
        """Reserve memory for the states of a sequence's next pass.

        The reservation ends when the context is extended. It never fails for the only sequence: no other sequence
        could release memory.

        Args:
            states: number of full states that the pass writes for the context.
            nodes: number of new tentative nodes.
            ends: number of nodes, old and new, that end a block and have children (see `note_ends`).
        """
        if self.limit is None:
            return
        own_end = self._ends.get(sequence, 0)
        states += self._memory_of(nodes) + max(self._kept_ends(ends) - own_end, 0)
        other_claims = sum(self._claims.values()) - self._claims.get(sequence, 0)
        free = self.limit - self.needed - other_claims
        if states > free and (other_claims or self.needed > 1 + self._memory_of(sequence.nodes) + own_end):
            raise ExhaustedError(
                f"memory for recurrent states full: a request needs {states} more, {max(free, 0)} are free"
            )
        self._claims[sequence] = states
        self.shrink(max(free - states, 0))

    def note_ends(self, sequence: KVSequence, ends: int) -> None:
        """Set the number of nodes with full states.

        They end a block and have children.
        """
        self._ends.pop(sequence, None)
        if kept := self._kept_ends(ends):
            self._ends[sequence] = kept

    def _kept_ends(self, ends: int) -> int:
        return ends if self._nodes_per_state > 1 else 0

    def unclaim(self, sequence: KVSequence) -> None:
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
            before: slot of the last context token until now; None if the context was empty.
            written: slots of the tokens after `before`, up to `last`.
            last: slot of the new last context token; None if the context is empty or released.
            dropped: slots of nodes that did not become context; their states are dropped.
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
        """Make a state at a block's end a snapshot; drop other states."""
        if slot not in self._states:
            return
        if slot % BLOCK_TOKENS != BLOCK_TOKENS - 1:
            del self._states[slot]
            return
        self._snapshots[slot] = None
        self._snapshots.move_to_end(slot)
        self.shrink(_SNAPSHOTS)

    def shrink(self, snapshots: int) -> None:
        """Drop the least recently used snapshots until this number is left."""
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
