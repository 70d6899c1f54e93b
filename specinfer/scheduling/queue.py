"""Order waiting requests by priority, then by their callers' running requests. Pure.

Within one priority, the next request is of the caller with the fewest running requests, of any priority. Among callers
with equally many running requests, the caller admitted least recently is next, with its earliest request. So callers
without running requests are admitted first, one request each, even if other callers have many waiting requests.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from specinfer.errors import AlreadyExistsError, NotFoundError
from specinfer.scheduling.request import RequestState

Rank: TypeAlias = tuple[float, ...]
"""Sort key: the smallest is first; among equal keys, the earliest placed."""
Member = TypeVar("Member")
_SLACK = 32
"""Outdated heap entries allowed in addition to the number of members."""


class Ranking(Generic[Member]):
    """A heap with members that can be moved and removed.

    Moves and removals leave outdated entries in the heap. Outdated entries are skipped at the top, and never
    number more than the members plus `_SLACK`.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Member]] = []
        self._placed: dict[Member, int] = {}
        """Number of each member's valid entry."""
        self._entries = 0

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, member: Member, rank: Rank) -> None:
        """Add a member, or move it to another rank."""
        self._entries += 1
        self._placed[member] = self._entries
        heapq.heappush(self._heap, (rank, self._entries, member))
        self._clean()

    def remove(self, member: Member) -> None:
        """Remove a member, if present."""
        if self._placed.pop(member, None) is not None:
            self._clean()

    def first(self) -> Member | None:
        """Return the member with the smallest rank, if any."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _counts(self, entry: tuple[Rank, int, Member]) -> bool:
        return self._placed.get(entry[2]) == entry[1]

    def _clean(self) -> None:
        if len(self._heap) > 2 * len(self._placed) + _SLACK:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)


MIN_HINT_S = 0.1
MAX_HINT_S = 60.0
_FIRST_HINT_S = 1.0
"""Assumed seconds between finishes before any request has finished."""
_REMEMBERED = 32


class FinishRate:
    """Counts the latest finished requests since the scheduler was last idle."""

    def __init__(self) -> None:
        self._since = 0.0
        self._finishes: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, now: float) -> None:
        """Restart the count after idle time."""
        self._since = now
        self._finishes.clear()

    def finish(self, now: float) -> None:
        if len(self._finishes) == _REMEMBERED:
            self._since = self._finishes[0]
        self._finishes.append(now)

    def hint(self, now: float) -> float:
        """Return the mean seconds between finishes, as a hint when to retry."""
        passed = now - self._since
        interval = passed / len(self._finishes) if self._finishes else max(_FIRST_HINT_S, passed)
        return min(max(interval, MIN_HINT_S), MAX_HINT_S)


QUEUE_SHARE = 4
"""Maximum ratio of a named caller's waiting requests to free queue places.

This is a dynamic threshold (Choudhury and Hahne 1998): one caller alone can take four fifths of the queue,
several callers share the queue evenly, and some places always remain for other callers.
"""


class WaitingQueue:
    """Waiting requests, and the number of running requests by caller."""

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        self._callers: Ranking[str] = Ranking()
        """Callers with waiting requests, in the order of their next admissions."""
        self._by_caller: dict[str, Ranking[str]] = {}
        """Ids of each caller's waiting requests, by priority and arrival."""
        self._running: Counter[str] = Counter()
        self._admitted: dict[str, int] = {}
        """Number of each caller's latest admission.

        Callers without requests are kept, so that a returning caller does not count as new.
        """
        self._admissions = 0

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        """Return the waiting requests in no particular order."""
        return iter(self._states.values())

    def running_of(self, caller: str) -> int:
        return self._running[caller]

    def full_for(self, caller: str, places: int) -> str:
        """Return the reason to refuse the caller's next request; else empty."""
        free, of_caller = places - len(self), len(self._by_caller.get(caller, ()))
        if free <= 0:
            return f"queue full: {len(self)} requests are waiting"
        if caller and of_caller >= QUEUE_SHARE * free:
            return (
                f"queue full for caller {caller!r}: {of_caller} requests of the caller are waiting, "
                f"the maximum for {free} free places"
            )
        return ""

    def push(self, state: RequestState) -> None:
        request = state.request
        self._states[request.request_id] = state
        ranking = self._by_caller.setdefault(request.caller, Ranking())
        ranking.place(request.request_id, (-request.priority, *state.place))
        self._rank(request.caller)

    def first(self) -> RequestState | None:
        """Return the request to admit next; None if the queue is empty."""
        caller = self._callers.first()
        return None if caller is None else self._head(caller)

    def last(self, count: int) -> list[str]:
        """Return the ids of the `count` waiting requests to be admitted last."""
        ranked = sorted(self, key=lambda state: (-state.request.priority, *state.place), reverse=True)
        return [state.request.request_id for state in ranked[:count]]

    def admit(self, state: RequestState) -> None:
        """Count a waiting request as running."""
        caller = state.request.caller
        self._admissions += 1
        self._admitted[caller] = self._admissions
        self._running[caller] += 1
        self.remove(state)

    def leave(self, state: RequestState) -> None:
        """Count a running request as ended."""
        caller = state.request.caller
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._rank(caller)

    def remove(self, state: RequestState) -> None:
        request_id, caller = state.request.request_id, state.request.caller
        del self._states[request_id]
        self._by_caller[caller].remove(request_id)
        if not len(self._by_caller[caller]):
            del self._by_caller[caller]
        self._rank(caller)

    def _rank(self, caller: str) -> None:
        if caller not in self._by_caller:
            return self._callers.remove(caller)
        head = self._head(caller)
        admitted = self._admitted.get(caller, 0)
        rank = (-head.request.priority, self._running[caller], admitted, *head.place)
        return self._callers.place(caller, rank)

    def _head(self, caller: str) -> RequestState:
        request_id = self._by_caller[caller].first()
        assert request_id is not None, "callers without requests are removed"
        return self._states[request_id]


class RequestTable:
    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        self._cancelled: list[RequestState] = []
        self._deadlines: Ranking[str] = Ranking()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def states(self) -> Mapping[str, RequestState]:
        """All requests by id, in order of submission. Read-only."""
        return MappingProxyType(self._states)

    def check_new(self, request_id: str) -> None:
        """Check that no request has this id."""
        if request_id in self._states:
            raise AlreadyExistsError(f"request_id = {request_id!r}: already waiting or running")

    def get(self, request_id: str) -> RequestState:
        """Return the request of this id."""
        if request_id not in self._states:
            raise NotFoundError(f"request_id = {request_id!r}: neither waiting nor running")
        return self._states[request_id]

    def has(self, state: RequestState) -> bool:
        """Return whether the table has this object, not only its request id."""
        return self._states.get(state.request.request_id) is state

    def add(self, state: RequestState) -> None:
        request_id = state.request.request_id
        self._states[request_id] = state
        if state.request.deadline_s is not None:
            self._deadlines.place(request_id, (state.deadline_at,))

    def remove(self, state: RequestState) -> None:
        """Remove a request that has finished or moved to another gateway."""
        del self._states[state.request.request_id]
        self._deadlines.remove(state.request.request_id)

    def cancel(self, request_id: str) -> None:
        """Mark a request as cancelled."""
        state = self.get(request_id)
        if not state.cancelled:
            state.cancelled = True
            self._cancelled.append(state)

    def take_cancelled(self) -> list[RequestState]:
        """Return the requests cancelled since the last call and still unfinished."""
        cancelled, self._cancelled = self._cancelled, []
        return [state for state in cancelled if self.has(state)]

    def overdue(self, now: float) -> RequestState | None:
        """Return the request with the earliest passed deadline, if any."""
        first = self._deadlines.first()
        if first is None or self._states[first].deadline_at > now:
            return None
        return self._states[first]
