"""Members in the order of their ranks. Pure data structure.

Reading the first costs O(1), adding, moving and removing one O(log n) on average, so that a queue of a
thousand requests adds nothing that is felt to a step.
"""

import heapq
from typing import Generic, TypeAlias, TypeVar

Rank: TypeAlias = tuple[float, ...]
"""The smallest comes first; of equal ranks the one that was placed first."""
Member = TypeVar("Member")

_SLACK = 32
"""Outdated entries that may lie in the heap before it is built again."""


class Ranking(Generic[Member]):
    """A heap whose members can be moved and removed.

    Changes leave outdated entries behind; they are skipped when they come first, and there are never more
    of them than members and `_SLACK`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Member]] = []
        self._placed: dict[Member, int] = {}
        """Number of the entry that counts, of every member."""
        self._entries = 0

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, member: Member, rank: Rank) -> None:
        """Adds a member, or moves it to another rank."""
        self._entries += 1
        self._placed[member] = self._entries
        heapq.heappush(self._heap, (rank, self._entries, member))
        self._clean()

    def remove(self, member: Member) -> None:
        """Takes a member out, if it is one."""
        if self._placed.pop(member, None) is not None:
            self._clean()

    def first(self) -> Member | None:
        """The member with the smallest rank; None if there are no members."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _counts(self, entry: tuple[Rank, int, Member]) -> bool:
        return self._placed.get(entry[2]) == entry[1]

    def _clean(self) -> None:
        if len(self._heap) > 2 * len(self._placed) + _SLACK:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)
