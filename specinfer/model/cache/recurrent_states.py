"""Store the states of recurrent layers, by the slot of their token.

Like keys and values, a token's state is a function of its path, so a tree node has one, too. A state is large:
only those are kept from which a pass may begin. These are the states after the last token of each context, after
tentative nodes, and, while there is room, after the last tokens of blocks, from which other requests continue
(`PagedKVCache.share`).
"""

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from specinfer.errors import ExhaustedError
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots

_SNAPSHOTS = 32
"""Maximum number of states after blocks that no current request needs."""
State = TypeVar("State")


class RecurrentStates(Generic[State]):
    """States of one model.

    Its executor writes them; `PagedKVCache` decides which are needed.
    """

    def __init__(self, nodes_per_state: int = 1) -> None:
        """Create an empty store.

        The states of `nodes_per_state` tentative nodes take about the memory of one other state.
        """
        self._nodes_per_state = nodes_per_state
        self._states: dict[int, State] = {}
        self._users = Counter[int]()
        """Number of contexts that end at a slot."""
        self._snapshots: OrderedDict[int, None] = OrderedDict()
        """Slots of states that no context needs, least recently used first."""
        self._claims: dict[KVSequence, int] = {}
        """Number of states that a sequence may write in its next pass."""
        self._ends: dict[KVSequence, int] = {}
        """Number of states at block ends, by sequence, for its nodes."""
        self.limit: int | None = None
        """Number of states that fit in memory; None: size not known yet."""

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
        """Number of states that must stay, counted by their memory."""
        contexts = sum(slot in self._states for slot in self._users)
        nodes = len(self._states) - len(self._snapshots) - contexts
        return contexts + self._memory_of(nodes) + sum(self._ends.values())

    def _memory_of(self, nodes: int) -> int:
        return -(-nodes // self._nodes_per_state)

    def claim(self, sequence: KVSequence, states: int, nodes: int, ends: int = 0) -> None:
        """Claim room for the states of a sequence's next pass.

        The claim includes the states of its new nodes and lasts until its context is extended.
        `ends` of its nodes, old and new, end a block and have children (see `note_ends`).

        A sequence that is alone is never refused: no other one could release memory.

        Raises:
            ExhaustedError: if there is too little; claims are unchanged.
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
        """Note the number of nodes with children at block ends.

        Each of them has a whole state.
        """
        self._ends.pop(sequence, None)
        if kept := self._kept_ends(ends):
            self._ends[sequence] = kept

    def _kept_ends(self, ends: int) -> int:
        return ends if self._nodes_per_state > 1 else 0

    def unclaim(self, sequence: KVSequence) -> None:
        """Give up the claim of a sequence, if it has one."""
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

        None: the context is empty, or released.

        Args:
            sequence: whose context it is.
            before: slot of its last token up to now.
            written: slots of its other tokens since then.
            last: slot of its last token from now on.
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
        """Keep a state if it follows a whole block; else drop it."""
        if slot not in self._states:
            return
        if slot % BLOCK_TOKENS != BLOCK_TOKENS - 1:
            del self._states[slot]
            return
        self._snapshots[slot] = None
        self._snapshots.move_to_end(slot)
        self.shrink(_SNAPSHOTS)

    def shrink(self, snapshots: int) -> None:
        """Drop states that no context needs until there are so many."""
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
