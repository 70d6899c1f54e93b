"""Who is admitted next: priority first, then the caller with the fewest running requests. Pure.

Promise: whenever a request is admitted, no caller with a waiting request of the same priority has fewer
running requests than the admitted one's caller had. (Running requests of all priorities count.) Among
callers with equally many, the one that was admitted least recently comes first; among its requests, the
one that arrived first. So while a caller with nothing running waits, every free slot goes to such a
caller, and each of them gets one of the next as many slots as there are such callers, however many
requests others have waiting.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from gateway.requests.ranking import Ranking
from gateway.requests.request import RequestState

_Group: TypeAlias = tuple[int, str]
"""Priority and caller."""

QUEUE_SHARE = 4
"""A named caller may have as many requests waiting as this times the places that are free (a dynamic
threshold, Choudhury and Hahne 1998). So one caller alone can take four fifths of the queue, several share it
evenly, and some places are always left for who comes next."""


class WaitingQueue:
    """Requests that wait for admission, and how many each caller has running."""

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        self._groups: dict[_Group, Ranking[str]] = {}
        """Request ids in order of arrival."""
        self._order: Ranking[_Group] = Ranking()
        self._priorities: dict[str, set[int]] = {}
        """Those with which a caller has waiting requests."""
        self._waiting: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._admitted: dict[str, int] = {}
        """Number of a caller's latest admission. Kept for callers without requests, too: who comes back
        must not be taken for new. As large as the number of API keys."""
        self._admissions = 0

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        """In no particular order."""
        return iter(self._states.values())

    def running_of(self, caller: str) -> int:
        """Requests of a caller that run."""
        return self._running[caller]

    def full_for(self, caller: str, places: int) -> str:
        """Why no further request of the caller may wait in a queue of so many places; empty if one may."""
        free, own = places - len(self), self._waiting[caller]
        if free <= 0:
            return f"queue full: {len(self)} requests are waiting"
        if caller and own >= QUEUE_SHARE * free:
            return f"queue full for {caller!r}: {own} of its requests are waiting, {free} places are left"
        return ""

    def push(self, state: RequestState) -> None:
        """Lets a request wait."""
        group = _group(state)
        request_id = state.request.request_id
        self._states[request_id] = state
        self._waiting[state.request.caller] += 1
        self._priorities.setdefault(state.request.caller, set()).add(state.request.priority)
        self._groups.setdefault(group, Ranking()).place(request_id, state.place)
        self._rank(group)

    def first(self) -> RequestState | None:
        """The request to admit next; None if none waits."""
        group = self._order.first()
        return None if group is None else self._head(group)

    def admit(self, state: RequestState) -> None:
        """A waiting request runs from now on."""
        caller = state.request.caller
        self.remove(state)
        self._admissions += 1
        self._admitted[caller] = self._admissions
        self._running[caller] += 1
        self._rank_all(caller)

    def leave(self, state: RequestState) -> None:
        """A running request runs no longer."""
        caller = state.request.caller
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._rank_all(caller)

    def remove(self, state: RequestState) -> None:
        """Takes a waiting request out."""
        group, caller = _group(state), state.request.caller
        del self._states[state.request.request_id]
        self._waiting[caller] -= 1
        self._groups[group].remove(state.request.request_id)
        if self._groups[group]:
            return self._rank(group)
        del self._groups[group]
        self._order.remove(group)
        self._priorities[caller].remove(group[0])
        if not self._priorities[caller]:
            del self._priorities[caller], self._waiting[caller]
        return None

    def _rank_all(self, caller: str) -> None:
        for priority in self._priorities.get(caller, ()):
            self._rank((priority, caller))

    def _rank(self, group: _Group) -> None:
        priority, caller = group
        admitted = self._admitted.get(caller, 0)
        place = self._head(group).place
        self._order.place(group, (-priority, self._running[caller], admitted, *place))

    def _head(self, group: _Group) -> RequestState:
        request_id = self._groups[group].first()
        assert request_id is not None, "groups without requests are removed"
        return self._states[request_id]


def _group(state: RequestState) -> _Group:
    return state.request.priority, state.request.caller
